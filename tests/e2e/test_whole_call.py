"""Overhead around a graph may cancel its gain: whole calls are timed if that is possible."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

from tests.e2e.models import QUICK, Branches, build, close
from torchrlopt import optimise
from torchrlopt.api import whole_call
from torchrlopt.api.optimised import Optimised
from torchrlopt.judge import timing
from torchrlopt.judge.faster import Verdict
from torchrlopt.judge.policy import Policy
from torchrlopt.report import Report, Timing

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

TIMED: dict[str, Any] = {**QUICK, "measure": True}
X = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))


def timed(before_ms: float, after_ms: float) -> Timing:
    return Timing(before_ms, after_ms, 1 - after_ms / before_ms, 0.0, 9)


class Clock:
    """Answers for the clock, and counts how often it is asked for whole calls."""

    def __init__(self) -> None:
        self.graph, self.whole = timed(0.10, 0.05), timed(0.12, 0.15)
        self.num_asked = 0

    def time_whole(
        self, before: Callable[[], Any], after: Callable[[], Any], _: Any, policy: Policy, **__: Any
    ) -> Verdict:
        with torch.no_grad():
            got, wanted = after(), before()
        digits = 2e-2 if wanted.dtype is torch.bfloat16 else 1e-4
        assert_close(got, wanted, rtol=digits, atol=digits / 10)
        self.num_asked += 1
        return Verdict(policy.is_faster(self.whole), self.whole)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timing, "measure", lambda *_, **__: made.graph)
    monkeypatch.setattr(whole_call, "against", made.time_whole)
    return made


@pytest.mark.parametrize("at_once", [True, False])
def test_where_the_overhead_eats_the_gain_the_original_runs(
    at_once: bool, clock: Clock, runs: list[int]
) -> None:
    model = build(Branches)
    fast = optimise(model, X if at_once else None, **TIMED)
    close(fast(X), model(X).detach())
    assert clock.num_asked == 1
    assert fast.report.kept == "original"
    assert fast.report.fallback_reason == (
        "the whole call is not faster: 0.120 -> 0.150 ms, gain -0.250, min_gain 0.02"
    )
    assert (fast.report.measured_before_ms, fast.report.measured_after_ms) == (0.10, 0.05)
    assert fast.report.speedup == 1.0
    runs.clear()
    close(fast(X), model(X).detach())
    assert runs == []
    x = torch.randn(64, 16)
    close(fast(x), model(x).detach())
    assert len(runs) == 1, "a call of another size is not judged by this one"
    assert [report.kept for report in fast.reports] == ["original", "rewritten"]
    close(fast(X), model(X).detach())
    assert len(runs) == 1
    assert clock.num_asked == 1


def test_the_saved_report_says_so_too(clock: Clock, tmp_path: Path) -> None:
    fast = optimise(build(Branches), X, **TIMED, save_dir=str(tmp_path))
    (saved,) = tmp_path.glob("*/report.json")
    assert Report.from_json(saved.read_text()) == fast.report
    assert fast.report.kept == "original"
    assert not fast(X).requires_grad, "as if the rewritten graph ran"


@pytest.mark.hides_errors
def test_a_report_that_cannot_be_saved_costs_no_call(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full_after_the_call(report: Report, _: Any) -> None:
        if report.fallback_reason is not None:
            raise OSError("no space left on device")

    monkeypatch.setattr(Report, "save", full_after_the_call)
    model, options = build(Branches), {**TIMED, "save_dir": str(tmp_path)}
    close(optimise(model, X, **{**options, "on_error": "fallback"})(X), model(X).detach())
    with pytest.raises(OSError, match="no space"):
        optimise(model, X, **options)


def test_where_the_whole_call_is_faster_the_rewritten_graph_runs(clock: Clock, runs: list[int]) -> None:
    clock.whole = timed(0.12, 0.11)
    model = build(Branches)
    fast = optimise(model, X, **TIMED)
    assert clock.num_asked == 1
    assert fast.report.kept == "rewritten"
    runs.clear()
    close(fast(X), model(X).detach())
    assert len(runs) == 1
    fast = optimise(model, X, **TIMED, min_gain=0.2)
    assert "min_gain 0.2" in str(fast.report.fallback_reason), "the user's threshold decides"


@pytest.mark.parametrize("graph", [timed(5.0, 3.0), timed(80.0, 79.9)], ids=["large gain", "long call"])
def test_where_the_overhead_does_not_matter_no_call_is_timed(graph: Timing, clock: Clock) -> None:
    clock.graph = graph
    optimise(build(Branches), X, **TIMED)
    assert clock.num_asked == 0


def test_without_measuring_no_call_is_timed(clock: Clock) -> None:
    assert optimise(build(Branches), X, **QUICK).report.kept == "rewritten"
    assert clock.num_asked == 0


class Elsewhere(nn.Module):
    """Dynamo finds no graph in it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(1):  # Dynamo leaves functions alone whose loops it cannot trace
            print(end="")
            x = x + 1
        return x


@pytest.mark.parametrize("kind", [Branches, Elsewhere])
@pytest.mark.parametrize("records_gradients", [True, False])
def test_where_nothing_is_gained_calls_do_not_reach_dynamo(
    kind: type[nn.Module], records_gradients: bool, clock: Clock
) -> None:
    clock.graph = timed(0.10, 0.11)
    model = build(kind)
    fast = optimise(model, X, **TIMED)
    assert clock.num_asked == 0, "the graphs' verdicts decide"
    assert fast.report.kept == "original"
    files: set[str] = set()
    sys.setprofile(lambda frame, event, arg: files.add(frame.f_code.co_filename))
    try:
        with torch.set_grad_enabled(records_gradients):
            result = fast(X)
    finally:
        sys.setprofile(None)
    close(result, model(X))
    assert not [file for file in files if "_dynamo" in file]


class Counting(Branches):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


class Writing(Branches):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        x.add_(1)
        return out


class Counter:
    def __init__(self) -> None:
        self.calls = 0


class Holding(Branches):
    """Counts in an object of its own, which is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.held = Counter()

    @property
    def calls(self) -> int:
        return self.held.calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.held.calls += 1
        return super().forward(x)


class Remembering(Branches):
    """Adds the last outputs, kept in a queue that is always full, and in a tensor inside a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.last = deque([torch.zeros(5, 40)], maxlen=1)
        self.sums = {"here": torch.zeros(5, 40)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x) + self.last[0]
        self.last.append(out)
        self.sums["here"] += out
        return out


COUNTED: list[int] = []


@torch._dynamo.disable
def count() -> None:
    COUNTED.append(1)


class CountingAfter(Branches):
    """Dynamo cuts the call around what it is told to leave alone; there is one graph all the same."""

    @property
    def calls(self) -> int:
        return len(COUNTED)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        count()
        return out


@pytest.mark.parametrize("kind", [Counting, Writing, Holding, Remembering, CountingAfter])
def test_calls_that_leave_something_behind_are_not_repeated(kind: type[nn.Module], clock: Clock) -> None:
    clock.whole = timed(0.12, 0.06)
    COUNTED.clear()
    model, x = build(kind), X.clone()
    fast = optimise(model, x, **TIMED)
    assert clock.num_asked == 0
    assert getattr(fast, "calls", 1) == 1
    if kind is Writing:
        close(x, X + 1)


def test_inputs_without_versions_are_not_written_to_twice(clock: Clock) -> None:
    with torch.inference_mode():
        x = X.clone()
        optimise(build(Writing), **TIMED)(x)
        close(x, X + 1)
        assert clock.num_asked == 0
        optimise(build(Branches), **TIMED)(x)
    assert clock.num_asked == 1


def test_a_verdict_is_about_sizes_in_containers_too(clock: Clock, runs: list[int]) -> None:
    class Listed(Branches):
        def forward(self, given: list[dict[str, torch.Tensor]]) -> torch.Tensor:
            return super().forward(given[0]["x"])

    fast = optimise(build(Listed), ([{"x": X}],), **TIMED)
    assert fast.report.kept == "original"
    runs.clear()
    fast([{"x": X}])
    assert runs == []
    fast([{"x": torch.randn(64, 16)}])
    assert len(runs) == 1


class Opaque:
    """An object that a call gets, and may change without our seeing it."""

    def __init__(self) -> None:
        self.calls = 0


class Given(Branches):
    def forward(self, x: torch.Tensor, given: Opaque) -> torch.Tensor:
        given.calls += 1
        return super().forward(x)


def test_calls_with_objects_are_not_repeated(clock: Clock) -> None:
    given = Opaque()
    fast: Optimised = optimise(build(Given), (X, given), **TIMED)
    assert clock.num_asked == 0
    assert given.calls == 1
    assert fast.report.kept == "rewritten"


@pytest.mark.parametrize("weights", ["check", "frozen"])
def test_the_original_is_timed_with_the_autocast_of_the_caller(
    weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtypes = []

    def measure(before: Any, after: Any, inputs: Any, *_: Any, **__: Any) -> Timing:
        dtypes.append((before(*inputs())[0].dtype, after(*inputs())[0].dtype))
        return timed(0.10, 0.05)

    monkeypatch.setattr(timing, "measure", measure)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        fast = optimise(build(Branches), X, **TIMED, weights=weights)
        assert fast(X).dtype is torch.bfloat16
        assert torch.is_autocast_enabled("cpu")
    assert dtypes
    assert set(dtypes) == {(torch.bfloat16, torch.bfloat16)}
    fast(torch.randn(64, 16))
    assert dtypes[-1] == (torch.float32, torch.float32)


def addition(x: torch.Tensor) -> torch.Tensor:
    return x + 1


class Switched(Branches):
    """Dynamo finds no graph in calls that are not `full`."""

    def forward(self, x: torch.Tensor, full: int = 0) -> torch.Tensor:
        if not full:
            plain: torch.Tensor = torch._dynamo.disable(addition)(x)
            return plain
        return super().forward(x)


def test_a_call_that_gained_nothing_says_nothing_of_other_values() -> None:
    fast = optimise(build(Switched), **QUICK)
    with torch.no_grad():
        fast(X, 0)
        fast(X, 4)
    assert fast.report.kept == "rewritten"


class Adapter:
    def __init__(self) -> None:
        self.weight = torch.randn(16, 16, requires_grad=True)


ADAPTER = Adapter()


class Adapted(nn.Module):
    """Reads a tensor that requires gradients, where neither we nor Dynamo look."""

    @torch._dynamo.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ ADAPTER.weight


def test_a_model_without_a_graph_is_differentiated_as_ever() -> None:
    fast = optimise(build(Adapted), **QUICK)
    fast(X)
    for _ in range(2):
        assert fast(X).requires_grad


def test_nested_tensors_and_sizes_of_a_trace_have_no_key() -> None:
    model = build(nn.Identity)
    fast = optimise(model, **QUICK)
    nested = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(2, 4)])
    with torch.no_grad():
        for _ in range(2):
            assert fast(nested) is nested
            assert fast(X) is X
        traced = make_fx(fast, tracing_mode="symbolic", _allow_non_fake_inputs=True)(X)
        close(traced(X), X)
