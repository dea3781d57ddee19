"""A stored verdict that was taken by a wrong clock is corrected by the next process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.e2e.models import Branches, build
from torchrlopt import optimise
from torchrlopt.compile import backend
from torchrlopt.compile.memory import MEMORY
from torchrlopt.executors.eager.executor import EagerCallable
from torchrlopt.judge import timing
from torchrlopt.judge.timing import Sample
from torchrlopt.plan.store import PlanStore
from torchrlopt.report import Report

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
OPTIONS: dict[str, Any] = {"on_error": "raise", "executor": "eager", "searcher": "greedy"}
CALLS = 12


class Processes:
    """Makes processes, one after another, in this one; everything in them is real but the clock.

    Attributes:
        ms: how long a call takes, by the clock, of the original and of the rewritten graph.
        runs: which of them made the last process's calls, with all calls for checks and timing.
    """

    def __init__(self, way: str) -> None:
        self._way = way
        self.ms = {"original": 9.0, "rewritten": 5.0}
        self.runs: list[str] = []

    def sample_of(
        self, call: Callable[..., Any], inputs: Callable[[], Any], repeats: int, *_: bool
    ) -> Sample:
        before = self.runs.count("rewritten")
        for _ in range(repeats):
            call(*inputs())
        return Sample(self.ms["rewritten" if self.runs.count("rewritten") > before else "original"])

    def next(self, calls: int = CALLS) -> Report:
        """A process that optimises the model and calls it."""
        torch._dynamo.reset()
        backend.reset()
        MEMORY.clear()
        self.runs.clear()
        model = build(Branches)
        with torch.no_grad():
            if self._way == "optimise":
                run = optimise(model, X, **OPTIONS)
            else:
                run = torch.compile(model, backend="rlopt", options=OPTIONS)
                run(X)
            for _ in range(calls):
                before = len(self.runs)
                torch.testing.assert_close(run(X), model(X))
                self.runs += ["original"] * (len(self.runs) == before)
        return run.report if self._way == "optimise" else MEMORY.reports[-1]  # type: ignore[union-attr]


@pytest.fixture(params=["optimise", "torch.compile"])
def processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Processes:
    made = Processes(request.param)
    plain = EagerCallable.__call__

    def call(self: EagerCallable, *args: Any) -> Any:
        made.runs.append("rewritten")
        return plain(self, *args)

    monkeypatch.setattr(EagerCallable, "__call__", call)
    monkeypatch.setattr(timing, "sample_of", made.sample_of)
    return made


def stored_ms() -> tuple[float, float]:
    (entry,) = PlanStore().entries()
    return entry.payload["timing"]["before_ms"], entry.payload["timing"]["after_ms"]


def test_calls_correct_a_graph_that_is_slower(processes: Processes) -> None:
    assert processes.next(calls=0).kept == "rewritten"
    processes.ms["original"] = 3.0
    report = processes.next()
    assert processes.runs[-8:] == ["original"] * 8
    assert report.kept == "original"
    assert "calls contradict a stored verdict: the rewritten graph is not faster" in str(
        report.fallback_reason
    )
    assert stored_ms() == (3.0, 5.0)
    assert processes.next(calls=3).kept == "original"
    assert processes.runs[-3:] == ["original"] * 3


def test_two_rounds_correct_a_graph_that_is_faster(processes: Processes) -> None:
    processes.ms["rewritten"] = 20.0
    assert processes.next(calls=0).kept == "original"
    processes.ms["rewritten"] = 5.0
    assert processes.next(calls=3).kept == "rewritten"
    assert processes.runs[-3:] == ["rewritten"] * 3
    assert stored_ms() == (9.0, 5.0)


@pytest.mark.parametrize("rewritten_ms", [5.0, 20.0])
def test_true_verdicts_stay(rewritten_ms: float, processes: Processes) -> None:
    processes.ms["rewritten"] = rewritten_ms
    kept = processes.next(calls=0).kept
    stored = PlanStore().entries()[0].payload
    processes.ms = {name: 1.2 * ms for name, ms in processes.ms.items()}  # a slower moment
    assert processes.next().kept == kept
    assert PlanStore().entries()[0].payload == stored
    expected = "rewritten" if kept == "rewritten" else "original"
    assert processes.runs[-6:] == [expected] * 6
