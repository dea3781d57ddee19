"""Calls choose the executor: torchrlopt/compile/by_calls.py and background.py."""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from tests import forks
from tests.compile.attempts import attempted
from torchrlopt.compile import choice
from torchrlopt.compile.attempt import Attempt
from torchrlopt.compile.background import BACKGROUND
from torchrlopt.compile.by_calls import ByCalls, refusal
from torchrlopt.compile.choice import Rest
from torchrlopt.compile.compiled import Compiled
from torchrlopt.errors import LoweringError, WeightsError
from torchrlopt.executors import registry
from torchrlopt.judge import timing
from torchrlopt.judge.timing import Sample
from torchrlopt.options import OnError, Options
from torchrlopt.report import Journal, Report, Status

X = torch.zeros(2)
MS = {"original": 4.0, "eager": 2.0, "onnxruntime": 1.0, "openvino": 3.0}


class Graph:
    """A graph that notes its calls."""

    def __init__(self, name: str, made: list[str]) -> None:
        self.name, self.made = name, made
        self.during: Callable[[], object] = lambda: None
        self.num_evaluations, self.added = 1, 1

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        self.made.append(self.name)
        self.during()
        return (x + self.added,)

    def see_new_weights(self) -> None:
        """Evaluate the expressions over weights in the next call, wrongly."""

        def evaluate() -> None:
            self.num_evaluations, self.added, self.during = self.num_evaluations + 1, 7, lambda: None

        self.during = evaluate


class Original(nn.Module):
    """What all of them compute, as an ATen graph."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x + 1,)


class Traffic:
    """A compiled graph whose candidates take as long as `MS` says.

    Args:
        monkeypatch: replaces the clock.
        first: what the first call runs.
        price: of each executor as a multiple of another's.
        on_error: see `Options`.
        given: other options.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        first: str = "eager",
        price: float = 1.0,
        on_error: OnError = "fallback",
        **given: Any,
    ) -> None:
        monkeypatch.setattr(timing, "sample_of", self._sample_of)
        self.made: list[str] = []
        self.graphs = {name: Graph(name, self.made) for name in (*MS, "inductor")}
        self.built: list[str] = []
        self.may_build = threading.Event()
        self.may_build.set()
        options = Options(cache=False, on_error=on_error, **given)
        found = attempted(options, Journal(), MS["original"], MS["eager"], self.graphs["eager"])
        found = dataclasses.replace(found, options=dataclasses.replace(options, executor="eager"))
        if first == "original":
            found = dataclasses.replace(found, run=None, reason="not faster")
        names = ("onnxruntime", "openvino", "inductor")
        variants = [dataclasses.replace(options, executor=name) for name in names]
        contest = choice.Contest(
            self._attempt, choice._no_duel, choice._BY_CALLS, options, Journal(), lambda *_: price
        )
        self.compiled = Compiled(
            found.run or self.graphs["original"],
            Original(),
            Status("rewritten" if first == "eager" else "undecided"),
            on_error,
        )
        ByCalls(found, Rest(contest, variants, None), self.compiled, self.graphs["original"]).begin()

    def _attempt(self, options: Options, journal: Journal) -> Attempt:
        name = options.executor
        with journal.phase("lower"):
            assert self.may_build.wait(60)
            self.built.append(name)
            assert not torch.is_grad_enabled()
        if name not in self.graphs:
            raise LoweringError("cannot", got=name)
        return Attempt(options, journal, self.graphs[name])

    def _sample_of(self, call: Callable[..., Any], *_: Any) -> Sample:
        call()
        return Sample({**MS, "inductor": 0.5}[self.made[-1]])

    def build(self) -> None:
        """Wait for what is being built."""
        for each in list(BACKGROUND._threads[:1]):
            each.join(60)

    def call(self, count: int = 1) -> None:
        for _ in range(count):
            assert torch.equal(self.compiled.run([X])[0], X + 1)

    def settle(self) -> None:
        """Call until the choice is over; what is built next, the calls so far decide."""
        while not Report(self.compiled.status).wait(0):
            self.build()
            assert len(self.made) < 1000
            self.call(5)

    @property
    def states(self) -> dict[str, str]:
        return {each.executor: each.state for each in self.compiled.status.candidates}


@pytest.fixture(autouse=True)
def _nothing_is_built() -> Iterator[None]:
    yield
    for each in list(BACKGROUND._threads[:1]):
        each.join(60)


def test_calls_run_the_first_until_all_is_built_and_then_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(monkeypatch)
    traffic.may_build.clear()
    status = traffic.compiled.status
    traffic.call(5)
    assert set(traffic.made) == {"eager"}
    assert all(each.calls == 0 for each in status.candidates)
    assert not Report(status).wait(0)
    traffic.may_build.set()
    traffic.settle()
    traffic.call(10)
    assert traffic.states == {
        "eager": "dropped", "onnxruntime": "chosen", "openvino": "dropped", "inductor": "dropped",
    }  # fmt: skip
    assert traffic.compiled.lowered is traffic.graphs["onnxruntime"]
    assert traffic.built == ["onnxruntime", "openvino"]  # prices say that inductor takes longer
    assert traffic.made[-10:] == ["onnxruntime"] * 10
    assert status.kept == "rewritten"
    assert Report(status).wait()
    row = status.candidates[1]
    assert (row.median_ms, row.reason, status.candidates[2].calls) == (1.0, None, 3)
    assert "onnxruntime, agent: chosen, 1.000 ms" in str(Report(status))
    assert torchrlopt.Report.from_json(Report(status).to_json()).status.candidates == status.candidates


def test_an_executor_with_promising_prices_is_built_after_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(monkeypatch, price=0.5)
    traffic.settle()
    assert traffic.built == ["onnxruntime", "openvino", "inductor"]
    assert traffic.states["inductor"] == "chosen"


def test_the_original_is_replaced_and_can_win(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(monkeypatch, first="original")
    traffic.settle()
    assert traffic.states["onnxruntime"] == "chosen"
    assert (traffic.compiled.status.kept, traffic.compiled.status.fallback_reason) == ("rewritten", None)
    monkeypatch.setitem(MS, "original", 0.1)
    traffic = Traffic(monkeypatch, first="original")
    traffic.settle()
    assert traffic.states["original"] == "chosen"
    assert traffic.compiled.status.kept == "original"


def test_losers_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(monkeypatch)
    graphs = {name: weakref.ref(graph) for name, graph in traffic.graphs.items()}
    traffic.settle()
    traffic.graphs.clear()
    assert [name for name, graph in graphs.items() if graph() is not None] == ["onnxruntime"]


def test_what_is_dropped_is_freed_before_the_choice_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MS, "eager", 20.0)
    monkeypatch.setitem(MS, "openvino", 1.004)
    traffic = Traffic(monkeypatch)
    traffic.build()
    eager = weakref.ref(traffic.graphs.pop("eager"))
    while traffic.states["eager"] != "dropped":
        traffic.call()
    assert traffic.compiled.status.is_open
    assert eager() is None


def test_no_executor_is_built_after_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(monkeypatch, autotune_s=1e-9)
    traffic.settle()
    assert traffic.built == []
    assert traffic.states["eager"] == "chosen"


def fail() -> None:
    raise RuntimeError("no memory")


@pytest.mark.hides_errors
def test_errors_drop_a_candidate_and_reach_no_caller(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    traffic = Traffic(monkeypatch)
    del traffic.graphs["openvino"]
    traffic.graphs["onnxruntime"].during = fail
    traffic.build()
    with caplog.at_level(logging.WARNING, "torchrlopt"):
        traffic.settle()
    failed = {
        each.executor: each.reason for each in traffic.compiled.status.candidates if each.state == "failed"
    }
    assert failed == {"openvino": "cannot; got: openvino", "onnxruntime": "RuntimeError: no memory"}
    assert caplog.text.count("no memory") == 1
    assert traffic.states["inductor"] == "chosen"
    assert traffic.made.count("onnxruntime") == 1


@pytest.mark.hides_errors
def test_what_has_failed_without_another_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(monkeypatch)
    traffic.may_build.clear()
    traffic.graphs["eager"].during = fail
    traffic.call()
    traffic.may_build.set()
    traffic.build()
    traffic.call(5)
    assert traffic.compiled.lowered is None
    assert traffic.compiled.status.kept == "original"
    assert Report(traffic.compiled.status).wait(60)


@pytest.mark.hides_errors
@pytest.mark.parametrize("which", ["eager", "onnxruntime"])
def test_new_weights_end_the_choice_and_no_wrong_output_reaches_the_caller(
    monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    traffic = Traffic(monkeypatch)
    traffic.build()
    traffic.graphs[which].see_new_weights()
    while which not in traffic.made:
        traffic.call()
    status = traffic.compiled.status
    assert traffic.made[-2:] == [which, "original"]
    assert traffic.states["eager"] == "chosen"
    assert set(traffic.states.values()) == {"chosen", "dropped"}
    assert Report(status).wait(0)
    traffic.call(5)  # the chosen one is compared with the original, and given up if it is wrong
    assert status.kept == ("original" if which == "eager" else "rewritten")


@pytest.mark.hides_errors
def test_weights_errors_drop_nothing_and_on_error_raise_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_for_weights() -> None:
        raise WeightsError("deleted")

    traffic = Traffic(monkeypatch)
    traffic.build()
    traffic.graphs["eager"].during = fail_for_weights
    traffic.call(3)
    assert set(traffic.states.values()) == {"live", "waiting"}
    traffic = Traffic(monkeypatch, on_error="raise")
    traffic.build()
    traffic.graphs["eager"].during = fail
    with pytest.raises(RuntimeError, match="no memory"):
        traffic.call()


def test_a_wrong_call_is_the_caller_s_error_and_drops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(monkeypatch)
    traffic.build()
    run = traffic.compiled.lowered
    assert run is not None
    for _ in range(4):
        with pytest.raises(TypeError):
            run("no tensor")
    assert set(traffic.states.values()) == {"live", "waiting"}


def test_calls_that_overlap_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(monkeypatch)
    traffic.build()
    for graph in traffic.graphs.values():
        graph.during = lambda: run_in_thread(lambda: None if len(traffic.made) % 2 == 0 else traffic.call())
    traffic.call(10)
    assert len(traffic.made) == 20
    assert all(each.calls == 0 for each in traffic.compiled.status.candidates)


def run_in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.hides_errors
@pytest.mark.parametrize("is_later", [False, True])
def test_without_a_thread_the_best_so_far_is_chosen(monkeypatch: pytest.MonkeyPatch, is_later: bool) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    traffic = None
    if is_later:
        traffic = Traffic(monkeypatch, price=0.5)
        traffic.build()
    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", refuse)
        traffic = traffic or Traffic(monkeypatch)
        traffic.settle()
    best = "onnxruntime" if is_later else "eager"
    assert {name for name, state in traffic.states.items() if state == "chosen"} == {best}
    assert not BACKGROUND.is_busy
    other = Traffic(monkeypatch)
    other.settle()
    assert other.states["onnxruntime"] == "chosen"


def test_a_forked_child_stays_with_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(monkeypatch)
    traffic.may_build.clear()
    states = traffic.states

    def child() -> None:
        made = len(traffic.made)
        traffic.call(20)
        assert set(traffic.made[made:]) == {"eager"}
        assert traffic.states == states
        assert threading.active_count() == 1
        assert not Report(traffic.compiled.status).wait()

    forks.run(child)
    traffic.may_build.set()


def test_nobody_waits_for_a_graph_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(monkeypatch)
    traffic.build()
    report = Report(traffic.compiled.status)
    assert not report.wait(0)
    del traffic.compiled  # which Dynamo holds
    gc.collect()
    assert not report.status.is_open
    assert report.wait(60)


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.GELU()) for _ in range(4)]
    return nn.Sequential(*layers).eval()


def test_the_next_process_begins_with_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "available", lambda device_type: ("eager", "onnxruntime"))
    x = torch.randn(4, 64)
    original = model()
    fast = torchrlopt.optimise(original, (x,), executor="by_calls", measure_ms=20.0)
    with torch.no_grad():
        expected = original(x)
        for _ in range(20_000):
            torch.testing.assert_close(fast(x), expected)
            if fast.wait(0.001):
                break
    status = fast.report.status
    assert [each.state for each in status.candidates].count("chosen") == 1, str(fast.report)
    assert not [each for each in status.candidates if each.state == "failed"], str(fast.report)
    torch._dynamo.reset()
    again = torchrlopt.optimise(model(), (x,), executor="by_calls", measure_ms=20.0)
    assert again.report.status.candidates == []
    assert again.report.status.by_calls == "an earlier process has chosen"
    assert again.wait()


def test_the_next_process_keeps_an_original_that_won(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its first call had measured: calls decided otherwise."""
    options = Options(executor="by_calls")
    monkeypatch.setattr(choice, "_key", lambda *_: "key")
    monkeypatch.setattr(
        choice, "_remembered", lambda *_: ([dataclasses.replace(options, executor="eager")], False)
    )
    contestant: Any = SimpleNamespace(subject=SimpleNamespace(device=X.device))

    def attempt(variant: Options, journal: Journal) -> Attempt:
        return attempted(variant, journal, 2.0, 1.0)

    found, rest = choice.choose_at_first(attempt, contestant, options, Journal())
    assert (found.run, rest) == (None, None)
    assert "calls of the original took less time" in str(found.reason)


@pytest.mark.parametrize("is_everywhere", [False, True])
def test_with_deterministic_the_first_call_decides(
    is_everywhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "available", lambda device_type: ("eager", "onnxruntime"))
    x = torch.randn(4, 64)
    options: Any = {"measure_ms": 20.0, "budget_ms": 20.0, "searcher": "none", "cache": False}
    options["deterministic"] = not is_everywhere
    torch.use_deterministic_algorithms(is_everywhere)
    try:
        fast = torchrlopt.optimise(model(), (x,), executor="by_calls", **options)
    finally:
        torch.use_deterministic_algorithms(False)
    status = fast.report.status
    assert status.by_calls is not None
    assert status.by_calls.startswith("off: later calls")
    assert status.candidates == []
    assert {"eager", "onnxruntime"} <= {each.executor for each in fast.report.choices}


def test_what_calls_cannot_choose() -> None:
    def why(*inputs: Any, **given: Any) -> str | None:
        traced: Any = type("Traced", (), {"device": torch.device("cpu"), "inputs": inputs})
        return refusal(Options(executor="by_calls", **given), traced)

    assert why(X) is None
    assert "sizes" in (why(X, 3) or "")
    assert "measure_plans" in (why(X, measure_plans=2) or "")
    assert "max_error" in (why(X, max_error=0.1) or "")
    assert "deterministic" in (why(X, deterministic=True) or "")


def test_a_program_ends_while_something_is_built(tmp_path: Path, own_store: Path) -> None:
    program = """
import torch, torchrlopt
from torch import nn
model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)]).eval()
fast = torchrlopt.optimise(model, (torch.randn(2, 64),), executor="by_calls", measure_ms=5.0)
while not any(each.state == "building" for each in fast.report.status.candidates):
    fast.wait(0.001)
"""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary), "TORCHRLOPT_CACHE_DIR": str(own_store)}
    done = run_program(program, environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(temporary.iterdir()) == []


def run_program(program: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
