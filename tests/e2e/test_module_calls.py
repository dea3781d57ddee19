"""Calls of an optimised module: the first one, methods of the model, modes of torch, hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.e2e.models import QUICK, Branches, ConvNorm, build, close
from torchrlopt import optimise
from torchrlopt.compile import backend
from torchrlopt.errors import UnsupportedError

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))


# The first call


@pytest.mark.parametrize("weights", ["check", "live", "frozen"])
def test_without_inputs_it_is_compiled_at_the_first_call(weights: str, runs: list[int]) -> None:
    model = build(Branches)
    fast = optimise(model, **QUICK, weights=weights)
    assert fast.reports == []
    assert fast.report.num_graphs == 0
    assert fast.report.fallback_reason == "no graph has been compiled so far"
    assert "no graph has been compiled" in str(fast.report)
    for rows in (5, 5, 7):
        x = torch.randn(rows, 16)
        close(fast(x), model(x).detach())
    assert fast.report.kept == "rewritten"
    assert len(runs) == 3
    assert len(fast.reports) == 2, "five rows, and any number of rows"


def test_with_the_default_options() -> None:
    model = build(ConvNorm)
    x = torch.randn(2, 3, 16, 16)
    fast, at_once = optimise(model, on_error="raise"), optimise(model, x, on_error="raise")
    assert at_once.report.num_graphs == 1
    for each in (fast, at_once):
        close(each(x), model(x).detach())
        close(each(x), model(x).detach())
        assert each.report.num_graphs == 1


@torch.compiler.disable
def elsewhere(x: torch.Tensor) -> torch.Tensor:
    """Dynamo does not enter it."""
    return x + 1


class Cut(torch.nn.Module):
    """Two graphs, with a call between them that is in none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = elsewhere(x)
        return torch.relu(self.last(x))


class Elsewhere(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return elsewhere(x)


def test_the_report_says_where_a_graph_was_cut() -> None:
    fast = optimise(build(Cut), X, **QUICK)
    line = Cut.forward.__code__.co_firstlineno + 2
    for report in (fast.report, optimise(build(Cut), X, **QUICK).report):  # the second is from memory
        assert f"Dynamo ended the graph at test_module_calls.py:{line}" in report.cut
        assert report.cut in " ".join(text for name, text in report.rows() if name == "cut")
    whole = optimise(build(Branches), X, **QUICK).report
    assert whole.cut == ""
    assert "cut" not in dict(whole.rows())


def test_the_report_says_that_there_was_no_graph() -> None:
    fast = optimise(Elsewhere().eval(), X, **QUICK)
    assert fast.report.num_graphs == 0
    assert (
        fast.report.fallback_reason == "Dynamo found no graph in the call, TORCH_LOGS=graph_breaks says why"
    )


@pytest.mark.parametrize("rows", [5, 7])
def test_errors_of_a_call_are_ours(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise UnsupportedError("no such luck")

    fast = optimise(build(Branches), None if rows == 5 else X, **QUICK)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "capture_traced", fail)
        with pytest.raises(UnsupportedError, match="no such luck"):
            fast(torch.randn(rows, 16))
    fast(torch.randn(rows, 16))
    assert fast.report.kept == "rewritten", "the next call tries again"


def test_wrong_calls_raise_what_the_model_raises() -> None:
    model = build(Branches)
    fast = optimise(model, **{**QUICK, "on_error": "fallback"})
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        fast()
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        fast(X, y=1)
    with pytest.raises(RuntimeError, match=r"^mat1 and mat2 shapes cannot be multiplied"):
        fast(torch.randn(5, 17))
    assert fast.reports == []
    close(fast(X), model(X).detach())
    strict = optimise(model, **QUICK)
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        strict(torch.randn(5, 17))


# Methods of the model


class Repeating(Branches):
    def forward(self, x: torch.Tensor, depth: int = 0) -> torch.Tensor:
        out = super().forward(x)
        return self(out[..., :16], depth - 1) if depth else out

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return self(self.forward(x)[..., :16])


class Child(Repeating):
    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return super().twice(x) + 1

    @property
    def by_property(self) -> torch.Tensor:
        return self(X)

    @classmethod
    def of(cls, model: Child) -> torch.Tensor:
        return model(X)


def test_methods_meet_the_optimised_forward(runs: list[int]) -> None:
    model = build(Child)
    fast: Any = optimise(model, **QUICK)
    with torch.no_grad():
        close(fast.twice(X), model.twice(X))
        assert len(runs) == 2
        close(fast.by_property, model(X))
        close(fast.of(fast), model(X))
        assert len(runs) == 4
        close(fast(X, 2), model(X, 2))
    assert len(runs) == 5, "a call of the model inside its forward is part of one graph"
    model.twice(X)
    assert len(runs) == 5, "the original runs as it did"


# Hooks


def test_hooks_fire_once_wherever_they_are_registered(runs: list[int]) -> None:
    model = build(Branches)
    fast = optimise(model, X, **QUICK)
    seen: list[tuple[str, str]] = []
    handles = [
        each.register_forward_pre_hook(lambda m, args, n=name: seen.append(("before", n)))
        for name, each in (("fast", fast), ("model", model))
    ]
    handles += [
        each.register_forward_hook(lambda m, args, out, n=name: seen.append(("after", n)))
        for name, each in (("fast", fast), ("model", model))
    ]
    runs.clear()
    wanted = [("before", "fast"), ("before", "model"), ("after", "fast"), ("after", "model")]
    for each in (fast, model):
        seen.clear()
        each(X)
        assert seen == wanted
    assert len(runs) == 1
    for handle in handles:
        handle.remove()
    seen.clear()
    fast(X)
    assert seen == []


def test_hooks_change_inputs_and_outputs() -> None:
    model = build(Branches)
    fast = optimise(model, X, **QUICK)
    plain = model(X).detach()
    with (
        fast.register_forward_pre_hook(lambda m, args, kwargs: ((), {"x": X}), with_kwargs=True),
        model.register_forward_hook(lambda m, args, out: out + 1),
    ):
        close(fast(torch.zeros(5, 16)), plain + 1)
        close(fast(X), model(X).detach())
    grads: list[Any] = []
    with fast.register_full_backward_hook(lambda m, given, got: grads.append(got)):
        x = X.clone().requires_grad_()
        fast(x).sum().backward()
    assert len(grads) == 1
