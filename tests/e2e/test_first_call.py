"""The work of a first call, counted rather than timed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchrlopt
from torchrlopt.capture.job import jobs_of
from torchrlopt.compile.attempt import attempt
from torchrlopt.compile.contestant import Contestant
from torchrlopt.compile.memory import MEMORY
from torchrlopt.judge import right
from torchrlopt.options import Options
from torchrlopt.report import Journal

X = torch.randn(32, 256, generator=torch.Generator().manual_seed(0))


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64)).eval()


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """What a function is called with from now on; it runs as before."""
    calls: list[Any] = []
    plain: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(plain)
    def run(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return plain(*args, **kwargs)

    monkeypatch.setattr(owner, name, run)
    return calls


@pytest.mark.usefixtures("fresh_dynamo")
def test_weights_are_packed_once() -> None:
    """For the check, the timing and the calls after it."""
    compiled = torch.compile(model(), backend="rlopt", options={"on_error": "raise", "min_gain": -10.0})
    with torch.no_grad():
        compiled(X)
    (kept,) = MEMORY.compiled.values()
    assert kept.lowered is not None
    assert kept.lowered.num_evaluations == 1


def test_float64_runs_once_for_all_executors_and_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = jobs_of(model(), (X,))
    contestant = Contestant(job, job.traced.aten.forward, job.traced.own_inputs)
    runs = counted(monkeypatch, right, "float64_reference")
    for searcher in ("greedy", "none"):
        options = Options(searcher=searcher, executor="eager", measure=False, cache=False)
        assert attempt(contestant, options, Journal()).run is not None
    assert len(runs) == 2, "for usual inputs and for extreme ones"


class Gathered(torch.nn.Module):
    """A graph network: numbers in one input name rows of another."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.linear(x))
        return torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])


def test_where_few_rows_do_not_go_all_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    real = right.standard

    def standard(aten: Any, forward: Any, fresh: Any, **others: Any) -> Any:
        seen.append([x.shape[0] for x in fresh if isinstance(x, torch.Tensor) and x.dim() == 2])
        return real(aten, forward, fresh, **others)

    monkeypatch.setattr(right, "standard", standard)
    torch._dynamo.reset()
    model = Gathered().eval()
    fast = torchrlopt.optimise(model, cache=False, min_gain=-10.0, measure=False, on_error="raise")
    with torch.no_grad():
        for rows in (64, 80):
            x, edges = torch.randn(rows, 16), torch.randint(0, rows, (2, 300))
            torch.testing.assert_close(fast(x, edges), model(x, edges), rtol=1e-4, atol=1e-4)
    assert any(4 in sizes for sizes in seen)
    assert 80 in seen[-1]
