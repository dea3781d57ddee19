"""The choice on a busy machine: baselines/busy.py."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from baselines import busy
from baselines.busy import Answer, losses, render, rows
from baselines.shared.disturbance import CONDITIONS, TURN_S

EAGER, ORT = "eager, agent", "onnxruntime, none"


def answer(condition: str, chosen: str, **ratios: float) -> Answer:
    names = {"eager": EAGER, "ort": ORT}
    named = {names[name]: ratio for name, ratio in ratios.items()}
    return Answer("some", condition, chosen, named, 2.0, 1.0, 0.01)


ANSWERS = [
    answer("quiet", ORT, eager=0.9, ort=0.5),
    answer("quiet", ORT, eager=0.8, ort=0.55),
    answer("neighbour", EAGER, eager=0.2, ort=0.7),
    answer("quota", "original", eager=1.1, ort=1.2),
    answer("quota", "inductor, agent"),
]


def test_a_choice_is_worth_its_least_time_on_the_quiet_machine() -> None:
    assert losses(ANSWERS) == [0.0, 0.0, pytest.approx(0.6), 1.0, None]


def test_the_original_may_be_the_best() -> None:
    assert losses([answer("quiet", EAGER, eager=1.25)]) == [pytest.approx(0.25)]
    assert losses([answer("quiet", "original", eager=1.25)]) == [0.0]


def test_table_and_file_have_every_choice() -> None:
    assert [row[:4] for row in rows(ANSWERS)][-2:] == [
        ["some", "quota", "1", "original"],
        ["some", "quota", "2", "inductor, agent"],
    ]
    assert all(len(row) == len(busy.CSV_COLUMNS) for row in rows(ANSWERS))
    assert render(ANSWERS).row_count == 3


def test_the_neighbour_takes_a_core_and_goes() -> None:
    def spent_s(pid: str) -> float:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9

    me = Path(f"/proc/self/task/{Path('/proc/thread-self').resolve().name}/children")
    before = set(me.read_text().split())  # other tests have servers
    with CONDITIONS["neighbour"]():
        (child,) = set(me.read_text().split()) - before
        end = time.monotonic() + 60
        while spent_s(child) < TURN_S and time.monotonic() < end:
            time.sleep(0.05)
        assert spent_s(child) >= TURN_S
    assert child not in me.read_text().split()


def test_a_choice_is_made_under_each_condition_that_can_be_had() -> None:
    for name, condition in CONDITIONS.items():
        try:
            with condition() as under:
                # Under a quota the command goes through a shell.
                found = busy.ask(under, "ensemble_mlp", name, "eager", 1) if name == "quota" else None
                assert under([sys.executable])[-1] == sys.executable
        except OSError:  # this user may make no control group
            continue
        assert found is None or found.ratios.keys() == {EAGER}
