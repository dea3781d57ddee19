"""Calls of an optimised module: each returns the current model's result and leaves no side effects."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from tests.e2e.models import QUICK, Branches, build, close
from torchrlopt import optimise

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))


def test_state_of_the_process() -> None:
    model = build(Branches)
    fast: Any = optimise(model, **QUICK)

    def expect_right() -> None:
        for _ in range(3):  # also of calls that are like one that was made before
            with torch.no_grad():
                close(fast(X), model(X))

    expect_right()
    with torch.inference_mode():
        assert fast(X).is_inference()
        close(fast(X), model(X))
    assert not fast(X).is_inference()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fast(X).dtype == torch.bfloat16
    expect_right()
    x = X.clone().requires_grad_()
    fast(x).sum().backward()
    assert x.grad is not None
    expect_right()
    torch.set_default_dtype(torch.float64)
    try:
        expect_right()
    finally:
        torch.set_default_dtype(torch.float32)
    model.train()
    assert fast(X).requires_grad
    model.eval()
    expect_right()


def test_a_buffer_that_is_written_to_and_arguments_that_are() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)
            self.register_buffer("total", torch.zeros(16))

        def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            y = torch.cat([self.a(x), self.b(x)], 1)
            self.total += y.sum(0)
            out.copy_(y)
            return y + self.total

    first, second = build(Writing), build(Writing)
    fast: Any = optimise(first, **QUICK)
    for _ in range(6):
        outs = torch.zeros(5, 16), torch.zeros(5, 16)
        with torch.no_grad():
            close(fast(X, outs[0]), second(X, outs[1]))
        close(outs[0], outs[1])
        close(first.total, second.total)


def test_the_parts_of_a_model_are_not_held() -> None:
    model = build(Branches)
    fast: Any = optimise(model, X, **QUICK)
    weight, layer = weakref.ref(model.a.weight), weakref.ref(model.b)
    model.a, model.b = nn.Linear(16, 8), nn.Linear(16, 24)
    gc.collect()
    assert weight() is None
    assert layer() is None
    close(fast(X), model(X).detach())


@pytest.mark.parametrize("weights", ["check", "frozen", "live"])
def test_the_arguments_of_a_call_are_not_held(weights: str) -> None:
    fast: Any = optimise(build(Branches), **QUICK, weights=weights)
    living = []
    for _ in range(4):
        x = X.clone()
        fast(x)
        living.append(weakref.ref(x))
        del x
    gc.collect()
    assert not any(each() is not None for each in living[1:]), "the first one is of the compilation"


def test_threads_that_call_while_another_changes_the_model() -> None:
    """Each result is that of one of the two models there were, and nobody crashes."""
    model = build(Branches)
    fast: Any = optimise(model, X, **QUICK)
    layers = [nn.Linear(16, 8), nn.Linear(16, 8)]
    expected = []
    with torch.no_grad():
        for layer in layers:
            model.a = layer
            expected.append(model(X))
    wrong: list[torch.Tensor] = []
    is_over = threading.Event()

    def call() -> None:
        while not is_over.is_set():
            got = fast(X)
            if not any(torch.allclose(got, each, rtol=1e-3, atol=1e-3) for each in expected):
                wrong.append(got)

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for step in range(300):
        model.a = copy.deepcopy(layers[step % 2])  # which is gone with the next step
        gc.collect(0)
    is_over.set()
    for caller in callers:
        caller.join()
    assert not wrong


def test_kinds_of_calls_beyond_the_limit_run_the_original(runs: list[int]) -> None:
    model = build(Branches)
    fast: Any = optimise(model, **QUICK)
    with torch._dynamo.config.patch(recompile_limit=2):
        fast(torch.randn(5, 16))
        assert not any("compiled" in note for note in fast.report.notes)
        for shape in ((7, 16), (2, 3, 16), (4, 16)):
            x = torch.randn(shape)
            close(fast(x), model(x).detach())
        assert len(fast.reports) == 2
        assert len(runs) == 3, "all but the one of three dimensions"
        assert any("compiled 2 times" in note for note in fast.report.notes)
