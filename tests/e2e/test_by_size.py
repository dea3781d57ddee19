"""Which graph runs for which sizes: torchrlopt/compile/by_size.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.e2e.models import QUICK, Branches, build, close
from torchrlopt import optimise
from torchrlopt.compile import by_size
from torchrlopt.compile.memory import MEMORY
from torchrlopt.judge.faster import Verdict
from torchrlopt.report import Report, Timing

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
TIMED = {**QUICK, "measure": True, "min_gain": -10, "measure_ms": 1}


def rows(number: int) -> torch.Tensor:
    return torch.randn(number, 16, generator=torch.Generator().manual_seed(number))


def test_each_bucket_of_sizes_has_its_graph(monkeypatch: pytest.MonkeyPatch, runs: list[int]) -> None:
    judged: list[int] = []

    def against(original: Any, run: Any, inputs: Any, *_: Any, **__: Any) -> Verdict:
        (size,) = (each for each in inputs() if isinstance(each, int))
        judged.append(size)
        return Verdict(size > 31, Timing(1.0, 2.0, -1.0, 0.0, 9))

    model = build(Branches)
    fast: Any = optimise(model, rows(5), **TIMED)
    fast(rows(6))
    monkeypatch.setattr(by_size.faster, "against", against)
    runs.clear()
    for number, num_runs in ((7, 1), (4, 2), (20, 2), (31, 2), (16, 2), (40, 3), (63, 4), (20, 4)):
        close(fast(rows(number)), model(rows(number)).detach())
        assert (number, len(runs)) == (number, num_runs)
    assert judged == [20, 40], "once for each bucket"
    lines = [text for name, text in fast.report.rows() if name == "sizes"]
    assert [line.partition(",")[0] for line in lines] == ["up to 31: original", "up to 63: rewritten"]
    assert Report.from_json(fast.report.to_json()).status.by_size == fast.report.status.by_size


class Counter(torch.nn.Module):
    """Writes to its argument."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x += 1
        return torch.relu(torch.relu(x))


def test_timing_leaves_what_a_graph_writes_to() -> None:
    fast: Any = optimise(Counter().eval(), **TIMED)
    for number in (5, 6, 20, 21):
        x = torch.zeros(number, 4)
        close(fast(x), torch.ones(number, 4))
        close(x, torch.ones(number, 4))
    assert len(fast.report.status.by_size) == 1, "20 rows were timed"


class Doubled:
    """A wrong graph."""

    def __init__(self, run: Any) -> None:
        self._run, self.num_evaluations = run, run.num_evaluations

    def __call__(self, *args: Any) -> list[Any]:
        return [2 * each for each in self._run(*args)]


@pytest.mark.hides_errors
def test_a_graph_that_is_wrong_for_other_sizes_is_dropped() -> None:
    model = build(Branches)
    fast: Any = optimise(model, **{**TIMED, "on_error": "fallback"})
    for number in (5, 6):
        close(fast(rows(number)), model(rows(number)).detach())
    for compiled in list(MEMORY.compiled.values()):
        compiled.lowered = Doubled(compiled.lowered)
    for number in (20, 21, 6):
        close(fast(rows(number)), model(rows(number)).detach())
    assert "a call of other sizes" in str(fast.reports[1].fallback_reason)
