"""Calls of an open session of a runtime."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.crosses import nightly_but
from tests.e2e.models import QUICK, RUNTIMES, build
from torchrlopt import optimise

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))


class Several(nn.Module):
    """Inputs and outputs of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        both = torch.cat([self.a(x), self.b(x)], 1).relu()
        return both, both[at], both > 0


class Plain(nn.Module):
    """One output of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.a(x), self.b(x)], 1).relu()


WEIGHTS = ("check", "frozen", "live")
CASES = nightly_but(
    [*zip(RUNTIMES, WEIGHTS, strict=False), *zip(RUNTIMES, WEIGHTS[1:], strict=False)],
    itertools.product(RUNTIMES, WEIGHTS),
)


def warm(model: nn.Module, executor: str, weights: str, *args: torch.Tensor) -> nn.Module:
    fast = optimise(model, args, **{**QUICK, "executor": executor, "weights": weights})
    assert fast.report.kept == "rewritten", fast.report.fallback_reason
    for _ in range(4):
        fast(*args)
    return fast


def expect(fast: nn.Module, model: nn.Module, *args: torch.Tensor) -> None:
    with torch.no_grad():
        assert_close(fast(*args), model(*args), rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(("executor", "weights"), CASES)
def test_calls_are_right(executor: str, weights: str) -> None:
    model, at = build(Several), torch.tensor([2, 0])
    fast = warm(model, executor, weights, X, at)
    for args in ((X * 2, at), (X, at.flip(0))):
        expect(fast, model, *args)
    expect(fast, model, X.clone().requires_grad_(), at)
    with torch.inference_mode():
        for _ in range(4):
            expect(fast, model, X, at)


class Handing(Plain):
    """Outputs that are an input and a weight, before those of its own."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.float(), self.a.weight.contiguous(), torch.cat([self.a(x), self.b(x)], 1).relu()


@pytest.mark.parametrize(("executor", "weights"), CASES)
def test_what_is_handed_on_is_among_the_outputs(executor: str, weights: str) -> None:
    model = build(Handing)
    fast = warm(model, executor, weights, X)
    x = X * 2
    expect(fast, model, x)
    with torch.no_grad():
        first, second, _ = fast(x)
    assert first.data_ptr() == x.data_ptr()
    assert second.data_ptr() == model.a.weight.data_ptr()


@pytest.mark.parametrize("executor", ["eager", *RUNTIMES])
def test_a_wrong_call_leaves_later_ones_right(executor: str) -> None:
    class Looking(Plain):
        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return super().forward(x)[at]

    model, at = build(Looking), torch.tensor([2, 0])
    fast: Any = warm(model, executor, "frozen", X, at)
    with contextlib.suppress(Exception):  # of each executor its own; OpenVINO looks something up
        fast(X, torch.tensor([7, 0]))
    for _ in range(2):
        expect(fast, model, X, at)


@pytest.mark.parametrize("executor", RUNTIMES)
def test_a_view_that_negates(executor: str) -> None:
    """Its memory holds the numbers with the other sign."""
    model = build(Plain)
    x = torch.complex(torch.zeros(3, 16), X).conj().imag
    assert x.is_neg()
    fast = warm(model, executor, "frozen", x)
    expect(fast, model, x)
    expect(fast, model, x * 2)
