"""The cost of collection, and training runs on graphs: training/papers/collecting.py."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from training.config import ROWS, Config
from training.papers.collecting import core_facts, core_runs, gain, on_graphs
from training.papers.runner import Result, Scale, Workplace, make_all, read
from training.real_trainer import new_networks

SMALL = {
    "groups": 3, "rollouts": 2, "max_steps": 3, "updates": 3, "epochs": 1, "model_epochs": 1,
    "dream_updates": 1, "dream_batch": 8, "dream_horizon": 2,
}  # fmt: skip


def made(row: str, collector: str = "in_process", workers: int = 1, tests: int = 0, **more: Any) -> Result:
    settings = {**SMALL, **more, "collector": collector, "workers": workers}
    return on_graphs.function(None, row=row, settings=tuple(settings.items()), test_graphs=tests)


def is_same(one: Result, other: Result) -> bool:
    return all(one[name] == other[name] for name in ("data", "weights", "real_steps"))


@pytest.mark.nightly
@pytest.mark.parametrize("row", ROWS)
def test_whole_runs_of_every_row_do_not_depend_on_who_collects(row: str) -> None:
    alone = made(row)
    assert is_same(alone, made(row, "threads", 2))
    assert is_same(alone, made(row, "processes", 2))
    assert alone["data"] != made(row, seed=1)["data"]
    assert {len(each) for each in alone["seconds"].values()} == {SMALL["updates"] - 1}


def test_what_is_saved_on_held_out_graphs_depends_on_the_policy_only() -> None:
    config = Config.of_row("mf", **SMALL)
    controller = new_networks(config)
    saved = gain(controller, config, 2)
    assert 0 < saved < 1
    assert gain(controller, dataclasses.replace(config, seed=5, sampler="uncertainty"), 2) == saved


def test_an_agent_is_measured_in_the_course_of_a_run() -> None:
    found = made("mf", tests=2, updates=1)
    assert (found["updates"], len(found["gains"])) == ([0, 1], 2)


@pytest.mark.nightly
def test_cores_are_compared(tmp_path: Path) -> None:
    runs = core_runs(Scale(0.001, 1))
    make_all(list(runs.values()), Workplace(tmp_path))
    facts = core_facts({key: read(run, tmp_path) for key, run in runs.items()})
    assert facts["cores_least"] == facts["cores"] == facts["cores_most"] > 0.3
    two = {("cores", 0): {"alone": 2.0, "together": 2.5}, ("cores", 1): {"alone": 1.0, "together": 2.0}}
    assert core_facts(two) == {"cores": 1.0, "cores_least": 1.0, "cores_most": 1.6}
