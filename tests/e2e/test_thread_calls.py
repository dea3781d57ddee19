"""Sixteen threads that call five models in any order get the results of calls one after the other.

`pytest -m nightly tests/e2e/test_thread_calls.py` makes 10,000 calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from tests.crosses import nightly_but
from tests.e2e.models import QUICK
from tests.e2e.threads import in_threads

NUM_THREADS = 16


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True)
    return nn.Sequential(nn.Embedding(50, 32), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 1), nn.ReLU(), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


class First(nn.Module):
    """The output of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.lstm(x)[0]
        return output


class Subject:
    """An optimised model with inputs and the results of single calls.

    Args:
        make: the model.
        inputs: of its calls.
        options: what differs from the usual ones.
    """

    def __init__(self, make: Callable[[], nn.Module], inputs: list[torch.Tensor], **options: Any) -> None:
        torch.manual_seed(0)
        self.model, self.inputs = make().eval(), inputs
        self.fast: Any = torchrlopt.optimise(self.model, **QUICK, **options)
        self.expected: list[torch.Tensor] = []

    def expect(self) -> None:
        """The results of calls that no other thread makes, which are right."""
        with torch.no_grad():
            self.expected = [self.fast(x) for x in self.inputs]
            for x, result in zip(self.inputs, self.expected, strict=True):
                torch.testing.assert_close(result, self.model(x), rtol=1e-3, atol=1e-4)

    def call(self, number: int) -> None:
        assert torch.equal(self.fast(self.inputs[number]), self.expected[number])


def subjects() -> list[Subject]:
    torch.manual_seed(1)
    return [
        Subject(cnn, [torch.randn(2, 3, 32, 32) for _ in range(3)], weights="frozen"),
        Subject(encoder, [torch.randint(0, 50, (2, 12)) for _ in range(3)]),
        Subject(mlp, [torch.randn(4, 24) for _ in range(3)], weights="live"),
        Subject(First, [torch.randn(2, 5, 8) for _ in range(3)]),
        Subject(mlp, [torch.randn(size, 24) for size in (3, 5, 6, 9)]),
    ]


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("while_cold", nightly_but([True], [False, True]))
@pytest.mark.parametrize("num_calls", nightly_but([800], [800, 10_000]))
def test_threads_get_the_results_of_single_calls(num_calls: int, while_cold: bool) -> None:
    found = subjects()
    cold: list[tuple[Subject, int, torch.Tensor]] = []
    order = [(subject, number) for subject in found for number in range(len(subject.inputs))]

    def first_calls(seed: int) -> None:
        for subject, number in random.Random(seed).sample(order, len(order)):
            cold.append((subject, number, subject.fast(subject.inputs[number])))

    if while_cold:
        in_threads(*(lambda seed=seed: first_calls(seed) for seed in range(NUM_THREADS)))
    for subject in found:
        subject.expect()
    graphs = [len(subject.fast.reports) for subject in found]
    assert graphs == [1, 1, 1, 1, 2]
    assert all(report.kept == "rewritten" for subject in found for report in subject.fast.reports)
    for subject, number, result in cold:
        if len(subject.fast.reports) <= 1:
            assert torch.equal(result, subject.expected[number])
        else:  # a size has code of its own if it comes first
            torch.testing.assert_close(result, subject.expected[number], rtol=1e-4, atol=1e-5)

    def calls(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(num_calls // NUM_THREADS):
            subject, number = draw.choice(order)
            subject.call(number)

    in_threads(*(lambda seed=seed: calls(seed) for seed in range(NUM_THREADS)))
    assert [len(subject.fast.reports) for subject in found] == graphs, "nothing is compiled again"
