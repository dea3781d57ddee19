"""The peers in their processes, their rounds, and the accuracy of their results."""

from __future__ import annotations

import dataclasses
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
from baselines.peers.measured import (
    Row,
    Settings,
    error_limit,
    measure_models,
    relative_error,
)
from baselines.peers.registry import make_peer
from baselines.shared.rounds import Contestant, Runner, alternated, started

ROOT = Path(__file__).resolve().parents[2]


def case(peer: str, model: str = "ensemble_mlp") -> Case:
    return Case(model, peer, batch=1, dtype="float32", threads=1)


def measure_model(cases: list[Case], settings: Settings, caches: Path) -> list[Row]:
    return next(measure_models([cases], settings, caches, lambda phase: None))


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


def test_unknown_peer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no peer named 'tensorrt'"):
        make_peer(case("tensorrt"), str(tmp_path))


def test_ratios_need_eager(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'eager' among the cases"):
        measure_model([case("inductor")], Settings(), tmp_path)


@pytest.mark.nightly
def test_models_that_compile_together_are_timed_one_by_one(tmp_path: Path) -> None:
    groups = [[case("eager", model), case("tensorrt", model)] for model in ("ensemble_mlp", "squeezenet1_1")]
    phases: list[str] = []
    found = list(measure_models(groups, Settings(rounds=1, round_s=0.01, jobs=4), tmp_path, phases.append))
    assert [[row.case for row in rows] for rows in found] == groups
    assert [[bool(row.reason) for row in rows] for rows in found] == [[False, True]] * 2
    assert [row.max_error is not None for row in found[1]] == [True, False]
    assert sorted("round" in phase for phase in phases[:4]) == [False] * 4
    assert {phase.rpartition(" ")[2] for phase in phases[:4]} == {"compiles"}
    assert phases[4:] == [f"{model}: round 1 of 1" for model in ("ensemble_mlp", "squeezenet1_1")]


class Sleeper:
    """A contestant of its own: fails in the way that it is asked for."""

    def __init__(self, folder: str, answer: int) -> None:
        self._answer = answer

    def answer(self) -> int:
        return self._answer

    def hang(self) -> None:
        time.sleep(60)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def contestants(count: int) -> list[Contestant]:
    target = f"{__name__}:Sleeper"
    return [Contestant(f"number {at}", target, {"answer": at}) for at in range(count)]


def test_contestants_alternate_and_one_that_dies_leaves_the_others(tmp_path: Path) -> None:
    with started(contestants(2), tmp_path) as runners:
        assert [result for _, _, result in alternated(runners, 2, "answer")] == [0, 1, 0, 1]
        assert runners[0].ask("die") is None
        assert "killed by SIGKILL" in runners[0].reason
        found = [(number, result) for number, _, result in alternated(runners, 2, "answer")]
        assert found == [(0, 1), (1, 1)]


def test_one_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    with started(contestants(1), tmp_path, timeout_s=20) as (runner,):
        runner.ask("answer")
        runner._worker._timeout_s = 0.1
        assert runner.ask("hang") is None
        assert runner.reason == "no answer to 'hang' within 0.1 s"


def test_a_peer_that_raises_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    cases = [case("eager"), case("tensorrt")]
    good, bad = measure_model(cases, Settings(rounds=2, round_s=0.01), tmp_path)
    assert good.reason == ""
    assert len(good.rounds_ms) == 2
    assert min(map(min, good.rounds_ms)) > 0
    assert bad.rounds_ms == []
    assert bad.reason.startswith("ValueError: no peer named 'tensorrt'")


@pytest.mark.nightly
def test_openvino_computes_in_the_precision_of_the_case(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="the peer openvino needs it")
    errors = {}
    for dtype in ("float32", "bfloat16"):
        own = [dataclasses.replace(case(peer, "ensemble_mlp"), dtype=dtype) for peer in ("eager", "openvino")]
        ours = measure_model(own, Settings(rounds=2, round_s=0.01), tmp_path)[1]
        assert not ours.reason
        errors[dtype] = ours.max_error
    assert errors["float32"] < 1e-5 < errors["bfloat16"]


def test_a_failed_reference_costs_its_model_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Runner.ask

    def refuse(self: Runner, do: str, **arguments: Any) -> Any:
        if do == "reference":
            return self.fail("MemoryError: float64 is too large")
        return ask(self, do, **arguments)

    monkeypatch.setattr(Runner, "ask", refuse)
    (found,) = measure_model([case("eager")], Settings(rounds=1, round_s=0.0), tmp_path)
    assert isinstance(found, Row)
    assert found.reason == "MemoryError: float64 is too large"


def test_the_process_of_a_runtime_needs_no_torch() -> None:
    """Else its peak memory would count torch."""
    script = (
        "import sys, baselines.peers.worker, baselines.peers.runtimes; assert not {'torch', 'torchrlopt'} "
        "& set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=120, check=True)
