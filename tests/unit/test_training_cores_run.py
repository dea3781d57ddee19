"""What a second core is worth: training/experiments/cores_run.py."""

from __future__ import annotations

from training.experiments.cores_run import CoresOutcome, CoresRun


def test_work_is_timed_alone_and_of_two_at_the_same_time() -> None:
    told: list[None] = []
    outcome = CoresRun(0, rounds=200).make(lambda: told.append(None))
    assert outcome.alone_seconds > 0
    assert outcome.together_seconds > 0
    assert len(told) == 1


def test_two_that_take_no_longer_than_one_compute_twice_as_much() -> None:
    assert CoresOutcome(1.0, 1.0).gain == 2.0
    assert CoresOutcome(1.0, 2.0).gain == 1.0
