"""Calls that Dynamo splits into several graphs: the program's own calls are timed, each made once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.e2e.models import QUICK, Branches, build
from torchrlopt import optimise
from torchrlopt.judge import own_calls, timing
from torchrlopt.judge.timing import Sample
from torchrlopt.report import Timing

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

TIMED: dict[str, Any] = {**QUICK, "measure": True}
X = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))


class Printing(Branches):
    """What is printed between two graphs is printed once for each call."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        print("once")
        return super().forward(y[:, :16])


class Clock:
    """Answers for the clock: how long a call takes by the original, and by rewritten graphs."""

    def __init__(self, runs: list[int]) -> None:
        self.graph = Timing(0.10, 0.05, 0.5, 0.0, 9)
        self.original_ms, self.compiled_ms = 0.2, 0.3
        self.asked: list[str] = []
        self._runs = runs

    def timed(self, call: Callable[[], Any], _: Iterable[Any]) -> tuple[Any, Sample]:
        before = len(self._runs)
        result = call()
        is_compiled = len(self._runs) > before
        self.asked.append("compiled" if is_compiled else "original")
        return result, Sample(self.compiled_ms if is_compiled else self.original_ms)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, runs: list[int]) -> Clock:
    made = Clock(runs)
    monkeypatch.setattr(timing, "measure", lambda *_, **__: made.graph)
    monkeypatch.setattr(own_calls, "timed", made.timed)
    return made


def call(fast: Any, model: Any, x: Tensor, capsys: pytest.CaptureFixture[str], times: int = 12) -> None:
    for _ in range(times):
        capsys.readouterr()
        found = fast(x)
        assert capsys.readouterr().out == "once\n"
        assert not found.requires_grad
        assert_close(found, model(x).detach(), rtol=1e-4, atol=1e-5)


def test_where_the_whole_call_is_slower_the_original_runs(
    clock: Clock, runs: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    model = build(Printing)
    fast = optimise(model, X, **TIMED)
    assert [report.kept for report in fast.reports] == ["rewritten", "rewritten"]
    assert clock.asked == []
    with torch.no_grad():
        call(fast, model, X, capsys)
    assert clock.asked == ["original", "compiled", "compiled", "original"]
    assert [report.kept for report in fast.reports] == ["original", "original"]
    reason = "the whole call is not faster: 0.200 -> 0.300 ms, gain -0.500, min_gain 0.02 (2 graphs)"
    assert fast.report.fallback_reason == reason
    runs.clear()
    with torch.no_grad():
        call(fast, model, X, capsys, 2)
        assert runs == []
        call(fast, model, torch.randn(64, 16), capsys, 2)
    assert len(runs) == 4, "calls of another size are not judged by these"


def test_where_the_whole_call_is_faster_the_rewritten_graphs_run(
    clock: Clock, runs: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    clock.original_ms = 0.4
    model = build(Printing)
    fast = optimise(model, **TIMED)
    call(fast, model, X, capsys)
    assert clock.asked == ["original", "compiled", "compiled", "original"]
    assert [report.kept for report in fast.reports] == ["rewritten", "rewritten"]
    runs.clear()
    call(fast, model, X, capsys, 1)
    assert len(runs) == 2


@pytest.mark.parametrize("options", [{"measure": False}, {}], ids=["not measured", "large gain"])
def test_where_nothing_is_to_be_decided_no_call_is_timed(
    options: dict[str, Any], clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    clock.graph = Timing(5.0, 3.0, 0.4, 0.0, 9)
    model = build(Printing)
    call(optimise(model, X, **{**TIMED, **options}), model, X, capsys)
    assert clock.asked == []


def test_one_call_is_timed_at_a_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = optimise(build(Printing), X, **TIMED)
    plain, inside = clock.timed, []

    def timed(call: Callable[[], Any], arguments: Iterable[Any]) -> tuple[Any, Sample]:
        thread = threading.Thread(target=lambda: inside.append(fast(X)))
        thread.start()
        thread.join(60)
        return plain(call, arguments)

    monkeypatch.setattr(own_calls, "timed", timed)
    found = fast(X)
    assert len(clock.asked) == 1
    assert_close(inside[0], found, rtol=1e-4, atol=1e-5)
