"""What a first call does, and how often: counted, never timed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from torchrlopt.capture.job import jobs_of
from torchrlopt.compile import check
from torchrlopt.compile.attempt import attempt
from torchrlopt.compile.contestant import Contestant
from torchrlopt.compile.memory import MEMORY
from torchrlopt.executors.eager.executor import EXECUTOR
from torchrlopt.onnx.writer import write
from torchrlopt.options import Options
from torchrlopt.report import Report

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
    runs = counted(monkeypatch, check, "float64_reference")
    for searcher in ("greedy", "none"):
        options = Options(searcher=searcher, executor="eager", measure=False, cache=False)
        assert attempt(contestant, options, Report()).lowered is not None
    assert len(runs) == 1


def test_code_is_generated_only_for_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = jobs_of(model(), (X,))
    graph = write(job.program)
    generated = counted(monkeypatch, fx.GraphModule, "recompile")
    EXECUTOR.lower(graph, job.captured, Options(executor="eager"))
    assert len(generated) == 1, "expressions over weights are interpreted"
