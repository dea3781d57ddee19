"""What planning can win: the best cost that each searcher finds on the suite, against steps and seconds.

Costs are those of the cost model; nothing is run. `python -m baselines.search_gap --help`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from matplotlib.figure import Figure
from rich.progress import track
from rich.table import Table

from baselines.graphs import graph_of
from baselines.models import NAMES
from baselines.shared import terminal
from baselines.shared.arguments import CsvFile, Models, PlotFile, PricesOf, PrimitivesOnly, choose, one
from baselines.shared.curves import BEST_KNOWN, SEARCHERS, Point, Settings, curve, heading, write_csv
from torchrlopt import executor_table

#: What these do depends on the seed; best_known has one run all the same, which takes long enough.
SEEDED = ("annealing", "random")
_SEEDS = 3
CLOSE = 0.005  # a gap below it is none


def main(
    models: Models = "all",
    executor: PricesOf = "eager",
    primitives_only: PrimitivesOnly = False,
    search_s: Annotated[float, typer.Option(min=0.01, help="Seconds of one search.")] = 20.0,
    best_known_s: Annotated[
        float, typer.Option(min=0.01, help=f"Seconds of {BEST_KNOWN} for each model.")
    ] = 60.0,
    csv: CsvFile = None,
    plot: PlotFile = None,
) -> None:
    """Find how far each searcher stays above the best known plan, in predicted cost.

    Example: python -m baselines.search_gap --models resnet18,nasrnn --csv search.csv --plot search.png
    """
    executor = one(executor, executor_table.names(), "executor")
    settings = Settings(executor, primitives_only, seconds=search_s, best_known_seconds=best_known_s)
    console = terminal.console()
    chosen = choose(models, NAMES, "model")
    console.print(heading(executor, primitives_only), highlight=False)
    points: list[Point] = []
    for model in track(chosen, description="searching", console=console, transient=True):
        graph = graph_of(model)
        for searcher in SEARCHERS:
            for seed in range(_SEEDS if searcher in SEEDED else 1):
                points += curve(model, graph, searcher, seed, settings)
        if csv is not None:
            write_csv(points, csv)
    console.print(render(points))
    console.print(verdict(points), highlight=False, soft_wrap=True)
    if plot is not None:
        write_plot(points, plot)


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
    by_model = gaps(points)
    searchers = list(next(iter(by_model.values())))
    title = "Cost above the best known plan, in %"
    table = terminal.table(title, ["model"], ["before ms", "best ms", *searchers])
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


def write_plot(points: Sequence[Point], path: Path) -> None:
    """Best cost against expansions and against seconds, two panels for each model."""
    models = list(dict.fromkeys(p.model for p in points))
    figure = Figure(figsize=(10, 2.2 * len(models)), layout="constrained")
    panels = figure.subplots(len(models), 2, squeeze=False)
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
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    typer.run(main)
