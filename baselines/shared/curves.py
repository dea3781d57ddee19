"""Searches of the core, as curves: the best cost so far over expansions and seconds.

Costs are those of the cost model; nothing is run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from baselines.shared import csv_files
from torchrlopt import _C
from torchrlopt.machine.cost import cost_model
from torchrlopt.substitutions import load_library

CSV_COLUMNS = ("model", "searcher", "seed", "steps", "seconds", "cost_ms")
#: The searcher that the others are measured against; it has a budget of its own.
BEST_KNOWN = "best_known"
#: Name in tables and files: arguments of `_C.search`.
SEARCHERS: dict[str, dict[str, Any]] = {
    "greedy": {"searcher": "greedy"},
    "chains": {"searcher": "chains"},
    "restarts": {"searcher": "restarts"},
    "iterated": {"searcher": "iterated"},
    "parts": {"searcher": "parts"},
    "beam": {"searcher": "beam"},
    "taso_1.02": {"searcher": "taso", "alpha": 1.02},
    "taso_1.05": {"searcher": "taso", "alpha": 1.05},
    "taso_1.1": {"searcher": "taso", "alpha": 1.1},
    "annealing": {"searcher": "annealing"},
    "random": {"searcher": "random"},
    BEST_KNOWN: {"searcher": "best_known"},
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """With which prices and substitutions to search, and how long.

    Attributes:
        executor: whose prices are used.
        primitives_only: leave the composites of the library out.
        steps: most expansions of one search, best_known excepted.
        seconds: most seconds of one search, best_known excepted.
        best_known_seconds: seconds of best_known for each model.
    """

    executor: str = "eager"
    primitives_only: bool = False
    steps: int = 50_000
    seconds: float = 20.0
    best_known_seconds: float = 60.0


@dataclasses.dataclass(frozen=True)
class Point:
    """The best cost of one search after some expansions; a row of the CSV file."""

    model: str
    searcher: str
    seed: int
    steps: int
    seconds: float
    cost_ms: float


def curve(model: str, graph: _C.Graph, searcher: str, seed: int, settings: Settings) -> list[Point]:
    """One search: a point for the start, for every time that the best cost fell, and for the end."""
    is_best_known = searcher == BEST_KNOWN
    found = _C.search(
        graph,
        load_library(primitives_only=settings.primitives_only),
        cost_model(settings.executor),
        budget_ms=1000 * (settings.best_known_seconds if is_best_known else settings.seconds),
        budget_steps=0 if is_best_known else settings.steps,
        seed=seed,
        **SEARCHERS[searcher],
    )
    progress = [*found["progress"], (found["expansions"], found["seconds"], found["cost_after_us"])]
    return [Point(model, searcher, seed, steps, seconds, us / 1000) for steps, seconds, us in progress]


def write_csv(points: Sequence[Point], path: Path) -> None:
    """All points, with `CSV_COLUMNS`."""
    csv_files.write(path, CSV_COLUMNS, map(dataclasses.astuple, points))


def heading(executor: str, primitives_only: bool) -> str:
    """What the tables of predicted costs are made with, on one line."""
    library = "primitives only" if primitives_only else "the full library"
    return f"{library}, prices of {executor}; predicted costs, nothing is run"
