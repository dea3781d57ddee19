"""The cost of collection, and training runs on graphs: training/papers/collecting.py."""

from __future__ import annotations

from typing import Any

import pytest

from training.config import ROWS
from training.papers.collecting import on_graphs
from training.papers.runner import Result

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
