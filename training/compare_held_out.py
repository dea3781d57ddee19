"""Compare the shipped agent with every other searcher on graphs that training never saw.

    python -m training.compare_held_out --graphs 40 --csv held_out.csv --plot held_out.png

The graphs come from held-out families and block structures; `--split test` adds twelve more families. Tables,
limits and files are those of `baselines.search`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from baselines import search
from baselines.shared import plots, terminal
from baselines.shared.arguments import one
from baselines.shared.tables import Results, rich
from torchrlopt import _C
from training.scores.evaluate import held_out_graph, unseen_graph

_GRAPHS = {"held_out": held_out_graph, "test": unseen_graph}


def _graph(split: str, number: int, seed: int) -> _C.Graph:
    return _GRAPHS[split](number, seed).graph


def _kind(split: str, number: int, seed: int) -> search.Kind:
    sample = _GRAPHS[split](number, seed)
    return search.Kind(" ".join(sample.structures), frozenset(sample.families))


def kinds_of(split: str, graphs: int, seed: int = 0) -> dict[str, search.Kind]:
    """The graph generators of a split, by name."""
    return {f"{split}_{number}": _kind(split, number, seed) for number in range(graphs)}


def compare(
    graphs: Annotated[int, typer.Option(min=1, help="How many graphs.")] = 40,
    split: Annotated[str, typer.Option(help=f"One of: {', '.join(_GRAPHS)}.")] = "held_out",
    seconds: Annotated[str, typer.Option(help="Wall times, separated by commas.")] = "0.1,0.3,1",
    steps: Annotated[str, typer.Option(help="Limits of expansions, separated by commas.")] = "100,500",
    seed: Annotated[int, typer.Option(min=0, help="Of the graphs: another makes others.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of what depends on a seed.")] = 3,
    best_known_s: Annotated[
        float,
        typer.Option(min=0.01, help="Seconds of each search that all are measured against, for each graph."),
    ] = 5.0,
    primitives_only: Annotated[bool, typer.Option(help="Without the library's composites.")] = False,
    csv: Annotated[Path | None, typer.Option(help="CSV file to write, anew after each graph.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot to draw: .png, .svg or .pdf.")] = None,
) -> None:
    """Compare the agent with every searcher by predicted cost, on graphs that training never saw."""
    one(split, list(_GRAPHS), "split")
    settings = search.Settings(
        primitives_only=primitives_only,
        seconds=search.wall_times(seconds),
        steps=search.limits_of_steps(steps),
        best_known_seconds=best_known_s,
        seeds=seeds,
    )
    made = {f"{split}_{number}": functools.partial(_graph, split, number, seed) for number in range(graphs)}
    results = Results("search", csv, batch=1, threads=1)
    search.run(made, settings, results, kinds_of(split, graphs, seed))
    for title, table in search.tables(results.frame).items():
        terminal.console().print(rich(title, table))
    if plot is not None:
        plots.lines(search.curves(results.frame), "cost above best known, %", plot)


if __name__ == "__main__":
    typer.run(compare)
