"""Gradients with respect to tensors outside of containers: in other objects, globals and closures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.e2e.models import QUICK, Branches, build
from torchrlopt import optimise
from torchrlopt.compile.fallback import WARNINGS

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))


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


def test_calls_after_some_without_gradients_see_them() -> None:
    model = OfBatch().eval()
    fast = optimise(model, **QUICK)
    for _ in range(5):
        assert not fast(Batch(X)).requires_grad
    for _ in range(3):
        x = X.clone().requires_grad_()
        same_gradient(fast, model, x, Batch(x))
        assert not fast(Batch(X)).requires_grad


@pytest.mark.parametrize("make", [set, frozenset])
def test_in_a_set(make: Callable[[Any], Any]) -> None:
    class OfSet(OfBatch):
        def forward(self, batch: Any) -> torch.Tensor:
            (x,) = batch
            return self.inner(x)  # type: ignore[no-any-return]

    model, x = OfSet().eval(), X.clone().requires_grad_()
    same_gradient(optimise(model, **QUICK), model, x, make([x]))


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


def test_where_the_original_was_found_to_be_no_slower() -> None:
    model = OfBatch().eval()
    fast = optimise(model, (Batch(X),), min_gain=1, cache=False, on_error="raise")
    assert fast.report.kept == "original"
    assert fast._torchrlopt_runner._gained_nothing_for, "calls of this kind are not even traced"
    x = X.clone().requires_grad_()
    same_gradient(fast, model, x, Batch(x))


def test_where_dynamo_cannot_trace_the_model() -> None:
    class Untraceable(OfBatch):
        def forward(self, batch: Batch) -> torch.Tensor:
            return self.inner(batch.x * (1 if type(batch.x.numpy(force=True).sum()) else 0))  # type: ignore[no-any-return]

    model, x = Untraceable().eval(), X.clone().requires_grad_()
    fast = optimise(model, measure=False)
    for _ in range(2):
        same_gradient(fast, model, x, Batch(x))


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
