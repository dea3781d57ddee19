"""The peers in their processes, their rounds, and how true their results are."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")

from baselines.peers.case import Case
from baselines.peers.process import PeerError, WorkerProcess
from baselines.peers.registry import make_peer
from baselines.peers.worker import time_round
from baselines.shared.accuracy import error_limit, relative_error
from baselines.shared.rounds import Row, Settings, measure_model, measure_models
from baselines.shared.suite import _together

ROOT = Path(__file__).resolve().parents[2]


def case(peer: str, model: str = "ensemble_mlp") -> Case:
    return Case(model, peer, batch=1, dtype="float32", threads=1)


def test_relative_error() -> None:
    expected = [np.array([1.0, -4.0]), np.array([np.nan, 2.0])]
    assert relative_error([np.array([1.0, -4.0]), np.array([np.nan, 2.0])], expected) == 0.0
    assert relative_error([np.array([2.0, -4.0]), np.array([np.nan, 2.0])], expected) == 0.25
    assert relative_error([np.array([1.0, -4.0]), np.array([np.nan, 3.0])], expected) == 0.5
    assert relative_error([np.array([0.0])], [np.array([0.0])]) == 0.0


@pytest.mark.parametrize(
    "outputs",
    [
        [],
        [np.zeros((2, 1))],
        [np.array([1.0, np.nan])],
    ],
)
def test_other_structure_is_infinitely_wrong(outputs: list[np.ndarray]) -> None:
    assert relative_error(outputs, [np.array([1.0, 2.0])]) == math.inf


def test_error_limit_follows_eager() -> None:
    assert error_limit(1e-4, "float32") == pytest.approx(8e-4)
    assert 1e-8 < error_limit(0.0, "float32") < error_limit(0.0, "bfloat16") < 0.1


class Counting:
    """A peer whose calls take as long, by a clock that only they move, as they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call_s: float) -> None:
        self.num_calls = 0
        self._call_s = call_s
        monkeypatch.setattr(time, "perf_counter", lambda: self.num_calls * self._call_s)

    def call(self) -> None:
        self.num_calls += 1

    def call_ms(self) -> float:
        self.call()
        return 1000 * self._call_s


@pytest.mark.parametrize(("seconds", "num_timed"), [(0.0, 3), (0.5, 8), (1e9, 200)])
def test_a_round_ends_by_its_seconds_but_has_enough_calls_and_not_too_many(
    seconds: float, num_timed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Counting(monkeypatch, call_s=0.0625)
    assert time_round(peer, seconds) == [62.5] * num_timed  # type: ignore[arg-type]
    assert peer.num_calls == num_timed + 2  # the others warm the caches


def test_unknown_peer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no peer named 'tensorrt'"):
        make_peer(case("tensorrt"), str(tmp_path))


def test_ratios_need_eager(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'eager' among the cases"):
        measure_model([case("inductor")], Settings(), tmp_path, lambda phase: None)


def test_models_that_compile_together_are_timed_one_by_one(tmp_path: Path) -> None:
    groups = [[case("eager", model), case("tensorrt", model)] for model in ("ensemble_mlp", "squeezenet1_1")]
    phases: list[str] = []
    found = measure_models(groups, Settings(rounds=1, round_s=0.01, jobs=4), tmp_path, phases.append)
    assert [[row.case for row in rows] for rows in found] == groups
    assert [[bool(row.reason) for row in rows] for rows in found] == [[False, True]] * 2
    assert [row.max_error is not None for row in found[1]] == [True, False]
    assert sorted("round" in phase for phase in phases[:4]) == [False] * 4
    assert {phase.rpartition(" ")[2] for phase in phases[:4]} == {"compiles"}
    assert phases[4:] == [f"{model}: round 1 of 1" for model in ("ensemble_mlp", "squeezenet1_1")]


@pytest.mark.parametrize(("jobs", "sizes"), [(1, [1, 1, 1]), (4, [2, 1]), (5, [2, 1]), (6, [3])])
def test_how_many_models_compile_together(jobs: int, sizes: list[int]) -> None:
    groups = [[case("eager"), case("inductor")]] * 3
    assert [len(some) for some in _together(groups, jobs)] == sizes


def test_a_peer_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    worker = WorkerProcess(case("eager"), tmp_path, tmp_path, timeout_s=0.1)
    try:
        os.kill(worker._process.pid, signal.SIGSTOP)
        with pytest.raises(PeerError, match=r"no answer to 'prepare' within 0\.1 s"):
            worker.ask("prepare")
    finally:
        worker.close()


def test_a_peer_that_raises_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    cases = [case("eager"), case("tensorrt")]
    good, bad = measure_model(cases, Settings(rounds=2, round_s=0.01), tmp_path, lambda phase: None)
    assert good.reason == ""
    assert good.ratio == 1.0
    assert good.median_ms is not None
    assert good.median_ms > 0
    assert bad == Row(case("tensorrt"), reason=bad.reason)
    assert bad.reason.startswith("ValueError: no peer named 'tensorrt'")


def test_a_peer_that_dies_says_how(tmp_path: Path) -> None:
    worker = WorkerProcess(case("eager"), tmp_path, tmp_path, timeout_s=30)
    try:
        os.kill(worker._process.pid, 9)
        with pytest.raises(PeerError, match=r"killed by SIGKILL: it said nothing"):
            worker.ask("prepare")
    finally:
        worker.close()


def test_openvino_computes_in_the_precision_of_the_case(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="the peer openvino needs it")
    errors = {}
    for dtype in ("float32", "bfloat16"):
        own = [dataclasses.replace(case(peer, "ensemble_mlp"), dtype=dtype) for peer in ("eager", "openvino")]
        ours = measure_model(own, Settings(rounds=2, round_s=0.01), tmp_path, lambda phase: None)[1]
        assert not ours.reason
        errors[dtype] = ours.max_error
    assert errors["float32"] < 1e-5 < errors["bfloat16"]


def test_a_failed_reference_costs_its_model_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = WorkerProcess.ask

    def refuse(self: WorkerProcess, do: str, **arguments: Any) -> dict[str, Any]:
        if do == "reference":
            raise PeerError("MemoryError: float64 is too large")
        return ask(self, do, **arguments)

    monkeypatch.setattr(WorkerProcess, "ask", refuse)
    (found,) = measure_model([case("eager")], Settings(rounds=1, round_s=0.0), tmp_path, lambda phase: None)
    assert found == Row(case("eager"), reason="MemoryError: float64 is too large")


def test_settings_of_torchrlopt_have_labels_and_caches_of_their_own() -> None:
    cases = [
        Case("nasrnn", "torchrlopt", 1, "float32", 1, *own)
        for own in itertools.product(
            ("eager", "auto"), ("check", "live", "frozen"), ("agent", "greedy", "none")
        )
    ]
    labels = [each.label for each in cases]
    assert len(set(labels)) == len(labels)
    assert labels[0] == "torchrlopt/eager"
    assert "torchrlopt/auto/frozen" in labels
    assert "torchrlopt/auto/frozen/none" in labels


def test_the_process_of_a_runtime_needs_no_torch() -> None:
    """Else its peak memory would count torch."""
    script = (
        "import sys, baselines.peers.worker, baselines.peers.runtimes; assert not {'torch', 'torchrlopt'} "
        "& set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=120, check=True)
