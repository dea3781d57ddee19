"""Optimised modules inside other compilers and tracers, and inputs that `optimise` refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from tests.e2e.models import QUICK, Branches, build, close
from torchrlopt import optimise
from torchrlopt.errors import UnsupportedError

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))


def test_an_optimised_module_inside_another() -> None:
    model = build(Branches)
    fast = optimise(model, X, **QUICK)
    outer = nn.Sequential(fast, nn.ReLU(), nn.Linear(40, 4)).eval()
    wanted = outer(X).detach()
    whole = optimise(outer, X, **QUICK)
    assert [report.kept for report in whole.reports] == ["rewritten"], "one graph with that of the inner one"
    close(whole(X), wanted)
    with torch.no_grad():
        close(torch.compile(outer, backend="eager", fullgraph=True)(X), wanted)
        close(torch.compile(fast, backend="eager", fullgraph=True)(X), model(X))


@pytest.mark.parametrize("is_warm", [False, True])
def test_export_and_trace(is_warm: bool) -> None:
    model = build(Branches)
    fast = optimise(model, X, **QUICK)
    wanted = model(X).detach()
    with torch.set_grad_enabled(not is_warm):
        for _ in range(4 if is_warm else 0):
            fast(X)
        close(torch.export.export(fast, (X,)).module()(X).detach(), wanted)
        close(torch.export.export(fast, (X,), strict=True).module()(X).detach(), wanted)
        for traced in (
            torch.jit.trace(fast, X),
            make_fx(fast)(X),
            torch.fx.symbolic_trace(nn.Sequential(fast)),
        ):
            close(traced(X).detach(), wanted)
            close(traced(-X).detach(), model(-X).detach())


def test_a_trace_sees_a_call_of_other_tensors() -> None:
    """Also where what is traced is no argument of it."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = optimise(build(Branches), X, **QUICK)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.inner(X).sum()

    outer = Outer().eval()
    with torch.no_grad():
        for _ in range(4):
            outer.inner(X)
        traced = torch.fx.symbolic_trace(outer)
        close(traced(X), outer(X))
        outer.inner.a.weight.mul_(2)
        close(traced(X), outer(X))


def test_tensors_without_data_are_left_alone() -> None:
    model = build(Branches)
    fast = optimise(model, **QUICK)
    fast.to("meta")
    assert fast(X.to("meta")).shape == (5, 40)
    assert fast.report.fallback_reason == "tensors on the meta device hold no data"


def test_optimised_anew() -> None:
    model = build(Branches)
    fast = optimise(model, X, **QUICK)
    again = optimise(fast, X, **{**QUICK, "searcher": "none"})
    assert again is not fast
    assert type(again).__mro__[2] is Branches
    assert again.report.searcher == "none"
    assert fast.report.searcher == "greedy"
    assert list(again.state_dict()) == list(model.state_dict())
    close(again(X), model(X).detach())


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: nn.Linear, "takes a module.*the class Linear.*make a module"),
        (lambda: [nn.ReLU()], "takes a module.*list"),
        (lambda: torch.relu, r"takes a module.*torch\.compile"),
        (lambda: torch.compile(build(Branches)), "compiled already.*OptimizedModule.*given to torch.compile"),
        (lambda: torch.jit.script(build(Branches)), "TorchScript.*made of"),
        (lambda: torch.jit.trace(build(Branches), X), "TorchScript.*made of"),
        (lambda: build(Branches).train(), r"training mode.*model\.eval"),
        (lambda: nn.LazyLinear(3).eval(), "no shapes yet.*call the model once"),
    ],
)
def test_what_is_refused(made: Callable[[], Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        optimise(made(), X)
    with pytest.raises(UnsupportedError, match=message):
        optimise(made())


def test_a_model_compiled_in_place_is_refused() -> None:
    model = build(Branches)
    model.compile()
    with pytest.raises(UnsupportedError, match=r"compiled already.*leave model\.compile\(\) out"):
        optimise(model, X)


@pytest.mark.parametrize("wrong", [3, "text", 1.5, {1, 2}])
def test_inputs_that_are_no_arguments_are_refused(wrong: Any) -> None:
    with pytest.raises(UnsupportedError, match="not the arguments of a call"):
        optimise(build(Branches), wrong)
