"""Concurrent calls from many threads, one of which may change the weights."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import torchrlopt
from tests.e2e import models
from tests.e2e.models import QUICK, RUNTIMES, ConvBranches, apply
from tests.e2e.threads import in_threads
from torchrlopt.compile import backend

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

EXECUTORS = ["eager", *RUNTIMES]
NUM_THREADS = 8


def build(seed: int = 0) -> nn.Module:
    return models.build(ConvBranches, seed)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_threads_with_an_instance_each(executor: str) -> None:
    x = torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(0))
    call = torch.compile(apply, backend="rlopt", options={**QUICK, "executor": executor})
    models = [build(seed) for seed in range(NUM_THREADS)]
    with torch.no_grad():
        call(models[0], x)

    def change_and_call(model: nn.Module) -> None:
        for _ in range(3):
            for parameter in model.parameters():
                parameter.mul_(-0.9)
            for _ in range(2):
                torch.testing.assert_close(call(model, x), model(x), rtol=1e-4, atol=1e-5)

    in_threads(*(lambda model=model: change_and_call(model) for model in models))  # type: ignore[misc]
    (report,) = backend.reports()
    assert report.steps


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_thread_that_changes_weights_during_calls_leaves_nothing_stale(executor: str) -> None:
    model, x = build(), torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(0))
    fast = torchrlopt.optimise(model, x, **QUICK, executor=executor)
    assert fast.report.steps
    others = [[parameter.detach().clone() for parameter in build(seed).parameters()] for seed in (1, 2)]
    has_ended = threading.Event()

    def write() -> None:
        try:
            for turn in range(20):
                for parameter, other in zip(model.parameters(), others[turn % 2], strict=True):
                    parameter.copy_(other)
        finally:
            has_ended.set()

    def call() -> None:
        while not has_ended.is_set():
            assert fast(x).isfinite().all()

    in_threads(write, call, call)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


class Product(nn.Module):
    """One weight, so that no call can see a part of the old ones and a part of the new ones."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight * 2).t()


def test_a_call_gives_the_result_of_the_old_weight_or_of_the_new() -> None:
    model, x = Product().eval(), torch.ones(2, 8)
    fast = torchrlopt.optimise(model, x, **{**QUICK, "searcher": "none"})
    assert fast.report.kept == "rewritten"
    parameters = [nn.Parameter(torch.full((8, 8), value)) for value in (1.0, -3.0)]
    has_ended = threading.Event()

    def write() -> None:
        try:
            for turn in range(200):
                model.weight = parameters[turn % 2]
        finally:
            has_ended.set()

    def call() -> None:
        while not has_ended.is_set():
            assert fast(x).unique().tolist() in ([16.0], [-48.0])

    in_threads(write, call, call)
    with torch.no_grad():
        assert torch.equal(fast(x), model(x))
