"""Gradients through an optimised module equal those of the model, wherever their tensors are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from tests.e2e.models import QUICK, Branches, build, close
from torchrlopt import optimise
from torchrlopt.compile.fallback import WARNINGS

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))


class Point(NamedTuple):
    x: torch.Tensor


@dataclasses.dataclass
class Record:
    inner: dict[str, Any]


class Deep(nn.Module):
    """Takes its tensor out of whatever it comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Branches()

    def forward(self, given: Any = None, *, other: Any = None) -> torch.Tensor:
        value = other if given is None else given
        while not isinstance(value, torch.Tensor):
            if isinstance(value, Record):
                value = value.inner
            value = value["x"] if isinstance(value, dict) else value[0]
        return self.inner(value)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: ((x,), {}),
        lambda x: (([x],), {}),
        lambda x: (({"x": (x, 3)},), {}),
        lambda x: ((Point(x),), {}),
        lambda x: ((Record({"x": x}),), {}),
        lambda x: (([Record({"x": [x]})],), {}),
        lambda x: ((), {"other": [{"x": x}, None, "text"]}),
    ],
    ids=["tensor", "list", "dict", "named tuple", "dataclass", "dataclass in a list", "keyword"],
)
def test_gradients_reach_inputs_in_containers(wrap: Callable[[Any], Any], runs: list[int]) -> None:
    model = build(Deep)
    fast = optimise(model, **QUICK)
    args, kwargs = wrap(X)
    fast(*args, **kwargs)
    assert len(runs) == 1
    grads = []
    for each in (model, fast):
        x = X.clone().requires_grad_()
        args, kwargs = wrap(x)
        each(*args, **kwargs).square().sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)
    assert len(runs) == 1
    with torch.no_grad():
        args, kwargs = wrap(X.clone().requires_grad_())
        assert not fast(*args, **kwargs).requires_grad
    assert len(runs) == 2


@pytest.mark.parametrize("weights", ["check", "frozen"])
def test_transforms_of_torch_func(weights: str) -> None:
    """Before calls without gradients, and after some."""
    model = nn.Sequential(build(Branches), nn.Dropout(0.9)).eval()
    fast = optimise(model, X, **QUICK, weights=weights)
    given = {name: value.detach() for name, value in model.named_parameters()}
    several = torch.stack([X, 2 * X, -X])
    for _ in range(2):
        for each in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd):
            close(*(each(lambda x, m=m: m(x).square().sum())(X) for m in (fast, model)))
            close(*(
                each(lambda w, m=m: torch.func.functional_call(m, w, X).square().sum())(given)
                for m in (fast, model)
            ))  # fmt: skip
        with torch.no_grad():
            close(torch.func.vmap(fast)(several), torch.func.vmap(model)(several))
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(X, torch.ones_like(X))
                ours, theirs = (forward_ad.unpack_dual(each(dual)).tangent for each in (fast, model))
                assert theirs is not None
                close(ours, theirs)
            for _ in range(4):
                close(fast(X), model(X))
    assert fast(X.clone().requires_grad_()).requires_grad
    with torch.no_grad():
        fast.train()
        assert (fast(X) == 0).float().mean() > 0.5
        fast.eval()
        close(fast(X), model(X))


def test_training_records_gradients_of_weights() -> None:
    model = build(Branches)
    fast = optimise(model, **QUICK)
    assert fast.train() is fast
    assert model.training
    assert model.a.training
    fast(X).sum().backward()
    assert model.a.weight.grad is not None
    assert fast.reports == [], "nothing is compiled for training"
    model.eval()
    assert not fast.training
    fast(X)
    assert fast.report.kept == "rewritten"
    outer = nn.Sequential(fast)
    assert outer.train()[0].training
    assert outer(X).requires_grad


# ---- of tensors outside of containers: in other objects, globals and closures


class Batch:
    """What PyTorch's pytree does not know."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


class OfBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = build(Branches)

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.inner(batch.x)  # type: ignore[no-any-return]


def gradient(model: Callable[..., Any], x: torch.Tensor, *args: Any) -> torch.Tensor:
    """Of what a model computes, with respect to `x`."""
    result = model(*args)
    assert result.requires_grad
    (found,) = torch.autograd.grad(result.square().sum(), x)
    return found


def same_gradient(fast: nn.Module, model: nn.Module, x: torch.Tensor, *args: Any) -> None:
    torch.testing.assert_close(gradient(fast, x, *args), gradient(model, x, *args))


def test_in_an_object_of_another_class() -> None:
    model = OfBatch().eval()
    fast = optimise(model, **QUICK)
    for _ in range(2):
        x = X.clone().requires_grad_()
        same_gradient(fast, model, x, Batch(x))
    with torch.no_grad():
        assert not fast(Batch(X.clone().requires_grad_())).requires_grad
    assert not fast(Batch(X)).requires_grad, "gradients of weights are recorded in training mode only"
    assert {report.kept for report in fast.reports} == {"rewritten"}


def test_in_a_closure_and_in_a_global(monkeypatch: pytest.MonkeyPatch) -> None:
    enclosed = torch.randn(16, requires_grad=True)

    class OfOthers(OfBatch):
        def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return self.inner(x * enclosed + IN_A_GLOBAL)  # type: ignore[no-any-return]

    model = OfOthers().eval()
    fast = optimise(model, **QUICK)
    same_gradient(fast, model, enclosed, X)
    enclosed = enclosed.detach()
    assert not fast(X).requires_grad
    prefix = nn.Parameter(torch.randn(16))
    monkeypatch.setitem(globals(), "IN_A_GLOBAL", prefix)
    same_gradient(fast, model, prefix, X)


IN_A_GLOBAL = torch.ones(16)


def test_of_a_module_that_is_an_argument() -> None:
    """Only the model's own weights are left out."""

    class WithAdapter(OfBatch):
        def forward(self, x: torch.Tensor, adapter: nn.Module) -> torch.Tensor:  # type: ignore[override]
            return self.inner(adapter(x))  # type: ignore[no-any-return]

    model, adapter = WithAdapter().eval(), nn.Linear(16, 16)
    for weights in ("check", "frozen"):
        fast = optimise(model, **{**QUICK, "weights": weights})
        same_gradient(fast, model, adapter.weight, X, adapter)
        adapter.requires_grad_(False)
        assert not fast(X, adapter).requires_grad
        adapter.requires_grad_(True)


def test_prefixes_in_a_cache_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")

    class OfCache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, cache: Any) -> torch.Tensor:
            keys, _ = cache.update(x, x, 0)
            return self.inner(keys)  # type: ignore[no-any-return]

    def cache(prefix: torch.Tensor) -> Any:
        made = transformers.DynamicCache()
        made.update(prefix, prefix, 0)
        return made

    model, x, prefix = OfCache().eval(), torch.randn(1, 2, 1, 8), torch.randn(1, 2, 3, 8, requires_grad=True)
    fast = optimise(model, **QUICK)
    torch.testing.assert_close(
        gradient(fast, prefix, x, cache(prefix)), gradient(model, prefix, x, cache(prefix))
    )
    given = cache(prefix)
    fast(x, given)
    assert given.get_seq_length() == 4, "the cache was written to once"


class Cut(OfBatch):
    """Reads the object after a graph of the call has run."""

    def forward(self, batch: Batch) -> torch.Tensor:
        before = self.inner(torch.ones(5, 16))
        torch._dynamo.graph_break()
        return self.inner(batch.x) + before  # type: ignore[no-any-return]


def test_where_a_graph_has_run_before(caplog: pytest.LogCaptureFixture) -> None:
    model = Cut().eval()
    fast = optimise(model, **QUICK)
    WARNINGS.clear()
    x = X.clone().requires_grad_()
    fast(Batch(x))
    assert "were not recorded in a call" in caplog.text
    same_gradient(fast, model, x, Batch(x))
