"""An optimised module acts like the model: attributes, class, names, containers, copies, conversions."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
import re
import types
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import torchrlopt
from tests.e2e.models import QUICK, Branches, build
from torchrlopt import optimise
from torchrlopt.errors import UnsupportedError

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))


class Scaled(Branches):
    """Branches times a number, which is an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.register_buffer("shift", torch.ones(40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale + self.shift


class OurNames(Branches):
    """A model that has names of its own where we have ours."""

    def __init__(self) -> None:
        super().__init__()
        self.report = nn.Linear(40, 8)
        self.reports = "mine"
        self.register_buffer("options", torch.ones(8))

    def forward(self, x: torch.Tensor, options: float = 1.0) -> torch.Tensor:
        return self.report(super().forward(x)) * self.options * options


class WithMethod(Branches):
    def report(self) -> str:
        return "of the model"


def close(fast: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    with torch.no_grad():
        assert_close(fast(*args, **kwargs), model(*args, **kwargs), rtol=1e-4, atol=1e-5)


def test_attributes_reach_the_model_and_the_compiled_code() -> None:
    model = build(Scaled)
    fast = optimise(model, X, **QUICK)
    assert fast.report.kept == "rewritten"
    fast.scale = 3.0
    assert model.scale == 3.0
    close(fast, model, X)
    model.scale = -1.0
    assert fast.scale == -1.0
    close(fast, model, X)
    fast.shift = torch.zeros(40)
    assert model.shift is fast.shift
    assert "shift" in dict(model.named_buffers())
    close(fast, model, X)
    fast.a = nn.Linear(16, 8, bias=False)
    assert model.a is fast.a
    close(fast, model, X)
    fast.b.weight = nn.Parameter(torch.zeros(24, 16))
    close(fast, model, X)
    fast.register_buffer("more", torch.ones(1))
    fast.add_module("last", nn.ReLU())
    fast.register_parameter("extra", nn.Parameter(torch.ones(1)))
    assert list(fast.state_dict()) == list(model.state_dict())
    assert {"more", "extra"} <= set(model.state_dict())
    for name in ("more", "last", "extra", "scale"):
        delattr(fast, name)
        assert not hasattr(model, name)
        assert not hasattr(fast, name)
    with pytest.raises(AttributeError, match="scale"):
        fast(X)


def test_names_of_the_model_come_before_ours() -> None:
    model = build(OurNames)
    fast = optimise(model, {"x": X, "options": 2.0}, **QUICK)
    assert fast.report is model.report
    assert fast.reports == "mine"
    assert torch.equal(fast.options, torch.ones(8))
    (report,) = torchrlopt.reports(fast)
    assert report.kept == "rewritten"
    close(fast, model, X, options=2.0)
    fast.report = nn.Linear(40, 8)
    assert model.report is fast.report
    close(fast, model, X, options=2.0)
    assert optimise(build(WithMethod), X, **QUICK).report() == "of the model"  # type: ignore[operator]


def test_forward_can_be_read_wrapped_and_put_back() -> None:
    model = build(Branches)
    fast = optimise(model, X, **QUICK)
    assert inspect.signature(fast.forward) == inspect.signature(model.forward)
    assert inspect.signature(type(fast).forward) == inspect.signature(Branches.forward)
    inner = fast.forward
    fast.forward = lambda x: inner(x) + 1  # type: ignore[assignment]
    close(fast, lambda x: model(x) + 1, X)
    assert "forward" not in vars(model)
    del fast.forward
    close(fast, model, X)
    model.forward = types.MethodType(lambda _, x: x * 2, model)  # type: ignore[assignment]
    assert torch.equal(fast(X), X * 2)


def test_containers_are_containers() -> None:
    model = nn.Sequential(build(Branches), nn.ReLU(), nn.Linear(40, 4)).eval()
    fast: Any = optimise(model, X, **QUICK)
    assert fast.report.kept == "rewritten"
    assert len(fast) == 3
    assert fast[0] is model[0]
    assert [*fast] == [*model]
    assert model[1] in fast
    assert type(fast[:2]) is nn.Sequential
    close(fast[:2], model[:2], X)
    fast.append(nn.Tanh())
    assert len(model) == 4
    close(fast, model, X)
    fast[1] = nn.Tanh()
    assert isinstance(model[1], nn.Tanh)
    close(fast, model, X)
    del fast[1]
    close(fast, model, X)
    table: Any = optimise(nn.ModuleDict({"one": nn.ReLU()}).eval(), **QUICK)
    assert "one" in table
    assert list(table.keys()) == ["one"]


class Registered(nn.Module):
    """Subclasses have to say a key, and are registered under it."""

    known: ClassVar[dict[str, type]] = {}

    def __init_subclass__(cls, *, key: str) -> None:
        Registered.known[key] = cls


class Pair(Registered, key="pair"):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(width, 8), nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.left(x), self.right(x)], -1)

    def wider(self) -> Pair:
        return self.__class__(32)


def test_the_class_is_the_models_to_the_model() -> None:
    model = build(Pair)
    fast: Any = optimise(model, X, **QUICK)
    assert vars(fast) is vars(model)
    assert isinstance(fast, Pair)
    assert fast.__class__ is Pair
    assert re.sub("  # torchrlopt: .*", "", repr(fast)) == repr(model)
    assert "optimised" in repr(fast).splitlines()[0]
    assert Registered.known == {"pair": Pair}
    assert type(fast) is not Pair
    assert (type(fast).__name__, type(fast).__module__) == ("Pair", __name__)
    assert type(fast.wider()) is Pair
    plain: Any = type(fast)(32).eval()
    assert plain(torch.randn(2, 32)).requires_grad, "a model made of the class is a plain one"


def test_parametrisations_reach_both() -> None:
    model = nn.Linear(16, 8).eval()
    fast: Any = optimise(model, X, **QUICK)
    nn.utils.parametrizations.weight_norm(fast)
    assert type(model).__name__ == "ParametrizedLinear"
    assert fast.__class__ is type(model)
    close(fast, model, X)
    with torch.no_grad():
        model.parametrizations.weight.original0.mul_(2)  # type: ignore[union-attr, operator]
    assert torch.equal(fast.weight, model.weight)
    close(fast, model, X)
    nn.utils.parametrize.remove_parametrizations(fast, "weight")
    assert type(model) is nn.Linear
    assert isinstance(fast.weight, nn.Parameter)
    close(fast, model, X)


class Sealed(type):
    """Lets no class be made under another one of its own."""

    def mro(cls) -> list[type]:
        if any(isinstance(base, Sealed) for base in cls.__bases__):
            raise TypeError("no subclasses")
        return super().mro()


class Closed(nn.ReLU, metaclass=Sealed):
    pass


def test_a_class_without_subclasses_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"no subclass.*Closed.*torch\.compile"):
        optimise(Closed().eval())


class Slotted(Branches):
    __slots__ = ("__private", "scale")

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.__private = 2.0, 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale + self.__private

    def doubled(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self(x) / self.scale


def test_slots_are_shared() -> None:
    model = build(Slotted)
    fast = optimise(model, X, **QUICK)
    assert fast.scale == 2.0
    assert_close(fast.doubled(X), model.doubled(X).detach(), rtol=1e-4, atol=1e-5)
    fast.scale = 3.0
    assert model.scale == 3.0
    assert_close(fast(X), model(X).detach(), rtol=1e-4, atol=1e-5)
    del model.scale
    assert not hasattr(fast, "scale")
    made = type(fast)()  # a plain model, with slots of its own
    made.scale = 5.0
    assert not hasattr(model, "scale")


def test_a_forward_that_the_class_gets_later_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Replaced(Branches):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    model = build(Replaced)
    fast = optimise(model, X, **QUICK)
    inner = Branches.forward
    for _ in range(4):
        assert_close(fast(X), model(X).detach(), rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(Replaced, "forward", lambda self, x: inner(self, x) * 3 + 1)
    for _ in range(4):
        assert_close(fast(X), model(X).detach(), rtol=1e-4, atol=1e-5)
    assert fast.report.kept == "rewritten"
    assert len(fast.reports) == 1


def test_a_forward_that_is_made_anew_each_time_it_is_asked_for_is_compiled_once() -> None:
    class Partial(Branches):
        forward = functools.partialmethod(Branches.forward)  # type: ignore[assignment]

    model = build(Partial)
    fast = optimise(model, X, **QUICK)
    for _ in range(3):
        assert_close(fast(X), model(X).detach(), rtol=1e-4, atol=1e-5)
    assert len(fast.reports) == 1


def test_saved_loaded_and_copied() -> None:
    model = build(Scaled)
    fast = optimise(model, X, **QUICK)
    file = io.BytesIO()
    torch.save(fast, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for other in (loaded, copy.deepcopy(fast), pickle.loads(pickle.dumps(fast)), copy.copy(fast)):
        assert torchrlopt.reports(other) == []
        close(other, model, X)
        assert other.report.kept == "rewritten"
        other.scale = 5.0
        assert model.scale == 2.0
        close(other, lambda x: (model(x) - model.shift) * 2.5 + model.shift, X)
    shallow = copy.copy(fast)
    assert shallow.a is model.a
    twice = copy.deepcopy([fast, fast])
    assert twice[0] is twice[1]
    holder = nn.ModuleList([fast, model])
    copied: Any = copy.deepcopy(holder)
    assert copied[0].a is copied[1].a, "what was shared is shared"


def test_conversions_reach_both() -> None:
    model = build(Scaled)
    fast = optimise(model, X, **QUICK)
    assert fast.to(torch.float64) is fast
    assert model.a.weight.dtype == torch.float64
    close(fast, model, X.double())
    model.float()
    close(fast, model, X)
    assert fast.half() is fast
    with torch.no_grad():
        assert_close(fast(X.half()), model(X.half()), rtol=1e-2, atol=1e-2)
    fast.float().share_memory()
    assert model.a.weight.is_shared()
    close(fast, model, X)
    fast.requires_grad_(False)
    assert not model.a.weight.requires_grad
    fast.apply(lambda m: nn.init.zeros_(m.weight) if isinstance(m, nn.Linear) else None)
    assert model.a.weight.abs().sum() == 0
    close(fast, model, X)
    assert [*fast.parameters()] == [*model.parameters()]
    assert [name for name, _ in fast.named_modules()] == [name for name, _ in model.named_modules()]
    fast.load_state_dict(build(Scaled, 3).state_dict())
    close(model, build(Scaled, 3), X)
    close(fast, model, X)


def test_a_graph_module_stays_one() -> None:
    model = torch.fx.symbolic_trace(build(Branches)).eval()
    fast: Any = optimise(model, X, **QUICK)
    assert fast.report.kept == "rewritten"
    assert fast.graph is model.graph
    assert isinstance(fast, torch.fx.GraphModule)
    close(fast, model, X)
    close(copy.deepcopy(fast), model, X)
