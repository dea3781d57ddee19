"""What a second core is worth: training/experiments/cores_run.py."""

from __future__ import annotations

from pathlib import Path

from training.experiments.cores_run import CoresOutcome, control, cores
from training.experiments.runs import Scale, Workplace, make_all


def test_what_is_measured_is_kept_and_read_back(tmp_path: Path) -> None:
    run = cores(Scale(0.001, 1))[0]
    assert run.rounds < cores(Scale(1.0, 1))[0].rounds
    found = make_all([run], Workplace(tmp_path))[run]
    assert found.outcome.alone_seconds > 0
    assert found.outcome.together_seconds > 0
    assert found.seconds > found.outcome.together_seconds
    assert make_all([run], Workplace(tmp_path))[run] == found


def test_the_control_takes_both_at_their_best() -> None:
    assert CoresOutcome(1.0, 1.0).gain == 2.0
    assert CoresOutcome(1.0, 2.0).gain == 1.0
    assert "do 1.60 times as much" in control([CoresOutcome(1.0, 1.25), CoresOutcome(0.8, 1.0)])
    assert "do 2.00 times as much" in control([CoresOutcome(1.0, 1.25), CoresOutcome(2.0, 1.0)])
    assert "(1.00 to 1.60 measurement" in control([CoresOutcome(1.0, 1.25), CoresOutcome(1.0, 2.0)])
