"""Rows that measure graphs on demand: training/papers/measuring/efficiency.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from torchrlopt import _C
from torchrlopt.errors import LoweringError
from torchrlopt.executors.registry import Lowered
from torchrlopt.machine.profiling import Source
from torchrlopt.substitutions import load_library
from training.device.prices import cost_of, typical_prices
from training.dream_trainer import RANDOM_UPDATES
from training.papers.measuring import asking
from training.papers.measuring.asking import FREE, ask
from training.papers.measuring.efficiency import (
    DEMAND_ROWS,
    OnDemand,
    chosen_times,
    demand,
    demand_config,
    true_time,
)
from training.papers.measuring.measurements import FAILED, LEARNERS
from training.papers.measuring.subjects import QUICK, SUBJECTS
from training.papers.runner import Work

COST = cost_of(typical_prices("eager"))


def test_what_was_measured_is_known_and_the_best_is_kept() -> None:
    source = SUBJECTS[QUICK].source()
    machine = OnDemand(source, "eager")
    first = machine.time(source.program.graph)
    assert 0 < first != FAILED
    assert machine.time(source.program.graph) == first
    assert len(machine.asked) == 1
    asking = FREE["best_first"](source.program.graph, load_library(), COST, np.random.default_rng(0))
    ask(asking, machine, 8)
    assert len(machine.asked) == 8
    told = [best["told"] for best in machine.bests]
    assert told == sorted(told, reverse=True)
    assert machine.best_after(1)["told"] == first
    assert machine.best_after(8) == {**machine.bests[-1], "measurements": 8}
    rebuilt = _C.parse_graph(machine.bests[-1]["text"])
    assert machine.time(rebuilt) == told[-1], "a graph read from its text is the same graph"


class Refusing(Source):
    """A model of which an executor runs the first graph only."""

    def lower(self, graph: _C.Graph, executor: str) -> Lowered:
        if graph.hash() != self.program.graph.hash():
            raise LoweringError("the executor does not run this graph")
        return super().lower(graph, executor)


def test_a_graph_that_the_executor_refuses_is_told_as_slow() -> None:
    machine = OnDemand(Refusing(SUBJECTS[QUICK].source().job), "eager")
    graph = machine.source.program.graph
    ask(FREE["best_first"](graph, load_library(), COST, np.random.default_rng(0)), machine, 4)
    assert machine.best_after(4)["text"] == graph.text()


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=[pytest.mark.nightly] if row in ("random_macros", "wm", "wm_plus") else [])
        for row in DEMAND_ROWS
    ],
)
def test_every_row_measures_within_its_budget_and_its_choice_can_be_timed_again(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "EXPANSIONS", 300)
    budgets = (3, 30) if row in LEARNERS else (3, 6)
    if row in LEARNERS:
        assert demand_config(row, QUICK, 0, 30).updates > RANDOM_UPDATES, "a world model learns"
    given = {"subject": QUICK, "executor": "eager"}
    asked = demand.function(Work(tmp_path), row=row, seed=0, budgets=budgets, **given)
    assert [chosen["measurements"] for chosen in asked["chosen"]] == list(budgets)
    assert asked["chosen"][1]["told"] <= asked["chosen"][0]["told"]
    least = 2 if row in LEARNERS else 6  # all episodes may end with one graph in so small a space
    assert least <= asked["measured"] <= budgets[-1] + 16, "an update's episodes are played to their ends"
    assert 0 < asked["measuring_seconds"] < asked["seconds"]
    times = chosen_times.function(Work(tmp_path, [asked]), blocks=2, **given)
    for chosen in asked["chosen"]:
        assert 0 < true_time(times, chosen["text"]) != FAILED
