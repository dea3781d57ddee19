"""What the agents of the package win on graphs that training never saw, beside every other searcher.

    python -m training.compare_held_out --graphs 40 --csv held_out.csv --plot held_out.png

The graphs are of families and block structures that are held out; tables, limits and files are those of
`baselines.agent_gap`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from baselines import agent_gap
from torchrlopt import _C
from training.scores.evaluate import held_out_graph


def _graph(number: int) -> _C.Graph:
    return held_out_graph(number).graph


def compare(
    graphs: Annotated[int, typer.Option(min=1, help="How many graphs.")] = 40,
    seconds: Annotated[str, typer.Option(help="Wall times, separated by commas.")] = "0.1,0.3,1",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of what depends on a seed.")] = 3,
    best_known_s: Annotated[
        float, typer.Option(min=0.01, help="Seconds of best_known, and of TASO's long run, for each graph.")
    ] = 5.0,
    primitives_only: Annotated[bool, typer.Option(help="Without the library's composites.")] = False,
    csv: Annotated[Path | None, typer.Option(help="CSV file to write, anew after each graph.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot to draw: .png, .svg or .pdf.")] = None,
) -> None:
    """Compare the agents with every searcher on held-out graphs, in predicted cost."""
    settings = agent_gap.Settings(
        primitives_only=primitives_only,
        seconds=agent_gap.wall_times(seconds),
        best_known_seconds=best_known_s,
        seeds=seeds,
    )
    made = {f"held_out_{number}": functools.partial(_graph, number) for number in range(graphs)}
    agent_gap.run(made, settings, csv, plot)


if __name__ == "__main__":
    typer.run(compare)
