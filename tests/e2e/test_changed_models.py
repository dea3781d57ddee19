"""A model may be changed after its first call: guards that are left out are made up for by one check."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchrlopt

OPTIONS: dict[str, Any] = {"measure": False, "cache": False, "on_error": "raise", "searcher": "none"}
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def linear(seed: int, width: int = 8) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(8, width).eval()


class Scaled(nn.Linear):
    """Of the same attributes as its base class."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 3 * super().forward(x)


class Block(nn.Module):
    """Reads attributes of many kinds, by several ways."""

    doubled = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = linear(0), nn.BatchNorm1d(8)
        self.branches = nn.ModuleList([linear(1), linear(2)])
        self.named = nn.ModuleDict({"a": linear(3)})
        self.plain = [linear(4)]
        self.scale, self.sizes, self.table = 2.0, (4, 8), {"shift": 1.0}
        self.register_buffer("mask", torch.ones(8))
        self.activation = functional.relu
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x)) * self.mask * self.scale + self.table["shift"]
        for branch in (*self.branches, *self.named.values(), *self.plain):
            x = x + branch(x)
        x = self.activation(x.reshape(self.sizes))
        return x * 2 if self.doubled else math.copysign(1.0, self.scale) * x


CHANGES: dict[str, Callable[[Block], Any]] = {
    "another branch": lambda model: model.branches.__setitem__(1, linear(7)),
    "another part by its name": lambda model: model._modules.update(first=linear(8)),
    "one more branch": lambda model: model.branches.append(linear(9)),
    "attribute of the class": lambda model: setattr(model, "doubled", True),
    "forward": lambda model: setattr(model.first, "forward", lambda x: x * 0.5),
    "class": lambda model: setattr(model.first, "__class__", Scaled),
    "all attributes": lambda model: setattr(model.norm, "__dict__", {**model.norm.__dict__, "eps": 0.5}),
    "strides": lambda model: setattr(model.first.weight, "data", model.first.weight.data.t()),
    "sign": lambda model: setattr(model, "scale", -model.scale),
    "number": lambda model: setattr(model, "scale", 5.0),
    "tuple": lambda model: setattr(model, "sizes", (8, 4)),
    "function": lambda model: setattr(model, "activation", functional.gelu),
    "buffer": lambda model: setattr(model, "mask", torch.zeros(1)),
    "no bias": lambda model: setattr(model.first, "bias", None),
    "nested weight": lambda model: setattr(
        model.first, "weight", nn.Parameter(torch.nested.nested_tensor([torch.ones(8)]))
    ),
    "no mean": lambda model: setattr(model.norm, "running_mean", None),
    "dict": lambda model: model.table.update(shift=3.0),
    "list": lambda model: model.plain.__setitem__(0, linear(11)),
    "one more in a dict": lambda model: model.named.update({"b": linear(12)}),
    "one less in a dict": lambda model: model.named.pop("a"),
    "two instead of one": lambda model: setattr(model, "first", nn.Sequential(linear(13), nn.ReLU())),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_counts_in_the_next_call(name: str) -> None:
    model = Block()
    fast = torchrlopt.optimise(model, **OPTIONS)
    with torch.no_grad():
        before = model(X)
        torch.testing.assert_close(fast(X), before)
        CHANGES[name](model)
        try:
            after = model(X)
        except RuntimeError as error:  # as without us
            with pytest.raises(RuntimeError, match=str(error)[:20]):
                fast(X)
            return
        assert after.shape != before.shape or not torch.allclose(after, before)
        torch.testing.assert_close(fast(X), after)
        torch.testing.assert_close(fast(X), after)


def test_other_weights_of_the_same_layout_compile_nothing() -> None:
    model = Block()
    fast = torchrlopt.optimise(model, **OPTIONS)
    with torch.no_grad():
        fast(X)
        (report,) = fast.reports
        for seed in range(3):
            model.first.weight = nn.Parameter(linear(seed + 20).weight)
            model.first.bias = nn.Parameter(linear(seed + 20).bias)
            torch.testing.assert_close(fast(X), model(X))
        for seed in range(3):
            given = {f"first.{name}": each for name, each in linear(seed).named_parameters()}
            expected = torch.func.functional_call(model, given, (X,))
            torch.testing.assert_close(torch.func.functional_call(fast, given, (X,)), expected)
    assert [each.status is report.status for each in fast.reports] == [True]


@pytest.mark.parametrize("kind", [nn.ModuleDict, dict])
def test_another_order_of_keys_counts(kind: type) -> None:
    class Ordered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts: Any = kind({"linear": linear(0), "relu": nn.ReLU()})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part in self.parts.values():
                x = part(x)
            return x

    model = Ordered().eval()
    fast = torchrlopt.optimise(model, **OPTIONS)
    with torch.no_grad():
        fast(X)
        model.parts["linear"] = model.parts.pop("linear")
        torch.testing.assert_close(fast(X), model(X))


def test_weights_that_become_one_are_right() -> None:
    model = Block()
    fast = torchrlopt.optimise(model, **OPTIONS)
    with torch.no_grad():
        fast(X)
        model.branches[0].weight = model.branches[1].weight
        torch.testing.assert_close(fast(X), model(X))
        model.branches[0].weight.mul_(-2)
        torch.testing.assert_close(fast(X), model(X))


def test_a_model_that_is_changed_again_and_again_is_not_compiled_each_time() -> None:
    model = Block()
    fast = torchrlopt.optimise(model, **OPTIONS)
    with torch.no_grad():
        for _ in range(2):
            for scale in (2.0, 3.0):
                model.scale = scale
                fast(X)
        seen = [id(report.status) for report in fast.reports]
        for scale in (2.0, 3.0, 2.0, 3.0):
            model.scale = scale
            torch.testing.assert_close(fast(X), model(X))
        assert [id(report.status) for report in fast.reports][: len(seen)] == seen
        assert len(fast.reports) <= 2


def test_a_model_that_writes_to_itself_is_right() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.count = linear(0), 0
            self.latest: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            self.latest = self.layer(x) * self.count
            return self.latest + 1

    ours, theirs = Counting().eval(), Counting().eval()
    fast = torchrlopt.optimise(ours, **OPTIONS)
    with torch.no_grad():
        for _ in range(6):
            torch.testing.assert_close(fast(X), theirs(X))
    assert ours.count == theirs.count == 6
    assert ours.latest is not None


@pytest.mark.skipif(
    torch.__version__ < "2.12", reason="Dynamo does not notice it, with all its guards either"
)
def test_a_buffer_that_requires_gradients_later_gets_them() -> None:
    model = Block()
    fast = torchrlopt.optimise(model, **OPTIONS)
    with torch.no_grad():
        fast(X)
    model.mask.requires_grad_()
    fast(X).sum().backward()
    assert model.mask.grad is not None
