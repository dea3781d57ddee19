"""Many models, compiled and called concurrently by many threads."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

from tests.crosses import nightly_but
from tests.e2e.models import QUICK, Branches, ConvNorm
from tests.e2e.threads import in_threads
from torchrlopt.compile import backend

NUM_THREADS, NUM_MODELS = 8, 6


class Recurrent(nn.Module):
    """A loop whose body Dynamo unrolls; as many products with one input as there are steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.hidden, self.input = steps, nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(x)
        for _ in range(self.steps):
            state = torch.tanh(self.hidden(state) + self.input(x))
        return state


def make(number: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(number)
    if number % 3 == 0:
        return Branches(8 + number).eval(), torch.randn(3, 8 + number)
    if number % 3 == 1:
        return ConvNorm(4 + number).eval(), torch.randn(1, 3, 8, 8)
    return Recurrent(1 + number // 3).eval(), torch.randn(2, 8)


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("options", nightly_but([{}], [{}, QUICK]), ids=["default", "quick"])
def test_models_that_threads_compile_and_call_in_any_order(options: dict[str, Any]) -> None:
    models = [make(number) for number in range(NUM_MODELS)]
    fast = [torch.compile(model, backend="rlopt", options=options) for model, _ in models]
    with torch.no_grad():
        expected = [model(x) for model, x in models]

    def call(seed: int) -> None:
        order = [*range(NUM_MODELS)] * 2
        random.Random(seed).shuffle(order)
        for number in order:
            result = fast[number](models[number][1])
            torch.testing.assert_close(result, expected[number], rtol=1e-4, atol=1e-5)

    in_threads(*(lambda seed=seed: call(seed) for seed in range(NUM_THREADS)))  # type: ignore[misc]
    reports = backend.reports()
    assert len(reports) >= NUM_MODELS
    if options:
        assert all(report.kept == "rewritten" for report in reports)
