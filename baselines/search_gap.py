"""What planning can win: the best cost that each searcher finds on the suite, against steps and seconds.

Costs are those of the cost model; nothing is run. `python baselines/compare.py --search`.
"""

from __future__ import annotations

import csv as csv_files
import dataclasses
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from baselines.graphs import graph_of
from torchrlopt import _C
from torchrlopt.machine.cost import cost_model
from torchrlopt.substitutions import load_library

CSV_COLUMNS = ("model", "searcher", "seed", "steps", "seconds", "cost_ms")
#: The searcher that the others are measured against; it has a budget of its own.
BEST_KNOWN = "best_known"
#: Name in tables and files: arguments of `_C.search`.
SEARCHERS: dict[str, dict[str, Any]] = {
    "greedy": {"searcher": "greedy"},
    "beam": {"searcher": "beam"},
    "taso_1.02": {"searcher": "taso", "alpha": 1.02},
    "taso_1.05": {"searcher": "taso", "alpha": 1.05},
    "taso_1.1": {"searcher": "taso", "alpha": 1.1},
    "annealing": {"searcher": "annealing"},
    "random": {"searcher": "random"},
    BEST_KNOWN: {"searcher": "best_known"},
}
#: What these do depends on the seed.
SEEDED = ("annealing", "random", BEST_KNOWN)
CLOSE = 0.005  # a gap below it is none


@dataclasses.dataclass(frozen=True)
class Settings:
    """How long to search.

    Attributes:
        executor: whose prices are used.
        primitives_only: leave the composites of the library out.
        steps: most expansions of one search, best_known excepted.
        seconds: most seconds of one search, best_known excepted.
        best_known_seconds: seconds of best_known for each model.
        seeds: runs of the annealing and random searchers.
    """

    executor: str = "eager"
    primitives_only: bool = False
    steps: int = 50_000
    seconds: float = 20.0
    best_known_seconds: float = 60.0
    seeds: int = 3


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
    library = load_library(primitives_only=True) if settings.primitives_only else load_library()
    found = _C.search(
        graph,
        library,
        cost_model(settings.executor),
        budget_ms=1000 * (settings.best_known_seconds if is_best_known else settings.seconds),
        budget_steps=0 if is_best_known else settings.steps,
        seed=seed,
        **SEARCHERS[searcher],
    )
    progress = [*found["progress"], (found["expansions"], found["seconds"], found["cost_after_us"])]
    return [Point(model, searcher, seed, steps, seconds, us / 1000) for steps, seconds, us in progress]


def lowest(points: Sequence[Point], model: str, searcher: str | None = None) -> float:
    """The lowest cost in milliseconds that a searcher (None: any) found for a model; seeds: their mean."""
    mine = [p for p in points if p.model == model and searcher in (None, p.searcher)]
    if searcher is None:
        return min(p.cost_ms for p in mine)
    ends = {p.seed: p.cost_ms for p in mine}  # costs fall along a curve: the last one of a seed is its best
    return sum(ends.values()) / len(ends)


def gaps(points: Sequence[Point]) -> dict[str, dict[str, float]]:
    """By model and searcher: how much above the best known cost the result is, as a fraction of it."""
    models = dict.fromkeys(p.model for p in points)
    searchers = dict.fromkeys(p.searcher for p in points)
    return {m: {s: lowest(points, m, s) / lowest(points, m) - 1 for s in searchers} for m in models}


def render(points: Sequence[Point]) -> Table:
    """The gap of every searcher to the best known plan, in percent."""
    table = Table(title="Cost above the best known plan, in %", box=box.SIMPLE)
    by_model = gaps(points)
    searchers = list(next(iter(by_model.values())))
    table.add_column("model", no_wrap=True)
    for heading in ("before ms", "best ms", *searchers):
        table.add_column(heading, justify="right", no_wrap=True)
    for model, row in by_model.items():
        before = max(p.cost_ms for p in points if p.model == model and p.steps == 0)
        cells = [
            f"{before:.2f}",
            f"{lowest(points, model):.3f}",
            *(f"{100 * gap:.2f}" for gap in row.values()),
        ]
        table.add_row(model, *cells)
    table.add_section()
    close = [sum(row[s] <= CLOSE for row in by_model.values()) for s in searchers]
    table.add_row(f"within {100 * CLOSE:g} %", "", "", *(f"{n} of {len(by_model)}" for n in close))
    return table


def verdict(points: Sequence[Point], searcher: str = "greedy") -> str:
    """One sentence: is there anything to plan for?"""
    by_model = gaps(points)
    left = {model: row[searcher] for model, row in by_model.items() if row[searcher] > CLOSE}
    count = f"{len(by_model) - len(left)} of {len(by_model)}"
    close = f"{searcher} is within {100 * CLOSE:g} % of best known on {count}"
    if not left:
        return f"{close} models: there is nothing to plan for."
    names = ", ".join(f"{model} {100 * gap:.1f} %" for model, gap in left.items())
    return f"{close} models; left to win: {names}."


def write_csv(points: Sequence[Point], path: Path) -> None:
    """All points with `CSV_COLUMNS`; the file is complete or absent at any moment."""
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, delete=False, newline="", encoding="utf-8"
    ) as file:
        writer = csv_files.writer(file)
        writer.writerow(CSV_COLUMNS)
        writer.writerows(dataclasses.astuple(point) for point in points)
    os.replace(file.name, path)


def write_plot(points: Sequence[Point], path: Path) -> None:
    """Best cost against expansions and against seconds, two panels for each model."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(p.model for p in points))
    figure, panels = pyplot.subplots(len(models), 2, figsize=(10, 2.2 * len(models)), squeeze=False)
    searchers = list(dict.fromkeys(p.searcher for p in points))
    for row, model in zip(panels, models, strict=True):
        for panel, axis in zip(row, ("steps", "seconds"), strict=True):
            for i, searcher in enumerate(searchers):
                for seed in dict.fromkeys(p.seed for p in points if p.searcher == searcher):
                    line = [p for p in points if (p.model, p.searcher, p.seed) == (model, searcher, seed)]
                    xs = [max(getattr(p, axis), 1 if axis == "steps" else 1e-4) for p in line]
                    label = searcher if seed == 0 else None
                    panel.step(xs, [p.cost_ms for p in line], where="post", color=f"C{i}", label=label, lw=1)
            panel.set_xscale("log")
            panel.set_title(model, fontsize=8)
            panel.set_xlabel("expansions" if axis == "steps" else axis, fontsize=7)
            panel.set_ylabel("predicted ms", fontsize=7)
            panel.tick_params(labelsize=6)
    panels[0][0].legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def run(models: Sequence[str], settings: Settings, csv: Path | None, plot: Path | None) -> None:
    """Search all models with all searchers; print the table and write the files."""
    console = Console() if sys.stdout.isatty() else Console(width=160)
    library = "primitives only" if settings.primitives_only else "the full library"
    console.print(
        f"{library}, prices of {settings.executor}; predicted costs, nothing is run", highlight=False
    )
    points: list[Point] = []
    for model in track(models, description="searching", console=console, transient=True):
        graph = graph_of(model)
        for searcher in SEARCHERS:
            seeds = range(settings.seeds if searcher in SEEDED and searcher != BEST_KNOWN else 1)
            for seed in seeds:
                points += curve(model, graph, searcher, seed, settings)
        if csv is not None:
            write_csv(points, csv)
    console.print(render(points))
    console.print(verdict(points), highlight=False, soft_wrap=True)
    if plot is not None:
        write_plot(points, plot)
