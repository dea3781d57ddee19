"""Runs of training on graphs as experiments: training/experiments/graph_run.py."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from training.collectors.crews import Processes, Seat
from training.config import ROWS, Config
from training.experiments.graph_run import GraphOutcome, GraphRun, gain
from training.experiments.runs import path_of
from training.real_trainer import new_networks

SMALL = {
    "groups": 3, "rollouts": 2, "max_steps": 3, "updates": 3, "epochs": 1, "model_epochs": 1,
    "dream_updates": 1, "dream_batch": 8, "dream_horizon": 2,
}  # fmt: skip


def made(row: str, collector: str = "in_process", workers: int = 1, **more: Any) -> GraphOutcome:
    config = Config.of_row(row, **SMALL, **more, collector=collector, workers=workers)
    return GraphRun(config).make(lambda: None)


def is_same(one: GraphOutcome, other: GraphOutcome) -> bool:
    return (one.data, one.weights, one.real_steps) == (other.data, other.weights, other.real_steps)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_whole_runs_of_every_row_do_not_depend_on_who_collects(row: str) -> None:
    alone = made(row)
    assert is_same(alone, made(row, "threads", 2))
    assert is_same(alone, made(row, "processes", 2))
    assert alone.data != made(row, seed=1).data
    assert len(alone.collect_seconds) == len(alone.learn_seconds) == SMALL["updates"] - 1


@pytest.mark.slow
def test_a_worker_that_is_killed_in_the_middle_of_a_run_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = made("mf")
    hired: list[Seat] = []
    hire = Processes.hire

    def watched(crew: Processes) -> Seat:
        hired.append(hire(crew))
        return hired[-1]

    def kill() -> None:
        """After the first update; the worker has a process by then."""
        if len(hired) == 2:
            (process,) = hired[0]._executor._processes.values()  # type: ignore[attr-defined]
            os.kill(process.pid, signal.SIGKILL)

    monkeypatch.setattr(Processes, "hire", watched)
    config = Config.of_row("mf", **SMALL, collector="processes", workers=2)
    assert is_same(alone, GraphRun(config).make(kill))
    assert len(hired) == 3, "one was replaced"


def test_what_is_saved_on_held_out_graphs_depends_on_the_policy_only() -> None:
    config = Config.of_row("mf", **SMALL)
    controller = new_networks(config)
    saved = gain(controller, config, 2)
    assert 0 < saved < 1
    assert gain(controller, dataclasses.replace(config, seed=5, sampler="uncertainty"), 2) == saved


def test_a_run_is_named_by_all_that_it_depends_on_and_read_as_it_was_kept() -> None:
    config = Config.of_row("mf", **{**SMALL, "updates": 1})
    runs = [GraphRun(config), GraphRun(config, 2), GraphRun(dataclasses.replace(config, workers=2))]
    assert len({path_of(run, Path()) for run in runs}) == 3
    outcome = runs[1].make(lambda: None)
    assert (outcome.updates, len(outcome.gains)) == ([0, 1], 2)
    assert runs[1].read(json.loads(json.dumps(dataclasses.asdict(outcome)))) == outcome
