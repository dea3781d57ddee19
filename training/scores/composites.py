"""Compares a searcher without the library's composites with greedy search that has them.

    python -m training.scores.composites without.csv with.csv

reads two files of `training.compare_held_out` or `baselines.search` on the same graphs, the first of which
was made with `--primitives-only`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from baselines.shared.tables import of, read

#: Costs that differ by less than this share are the same plan, summed in another order.
SAME = 1e-6


def main(
    without: Annotated[Path, typer.Argument(help="CSV file of a run without the composites.")],
    with_them: Annotated[Path, typer.Argument(help="CSV file of a run with them.")],
    searcher: Annotated[str, typer.Option(help="Of the first file.")] = "agent",
    rival: Annotated[str, typer.Option(help="Of the second file.")] = "greedy",
    limit: Annotated[str, typer.Option(help="Of both searches.")] = "0.3 s",
) -> None:
    """Print on how many graphs a searcher that has to rediscover the hand-written composites is no worse."""
    ours, theirs = costs(without, searcher, limit), costs(with_them, rival, limit)
    if ours.keys() != theirs.keys():
        raise typer.BadParameter(f"the files are of other graphs: {sorted(ours.keys() ^ theirs.keys())[:3]}")
    ratios = {graph: ours[graph] / theirs[graph] for graph in ours}
    for graph, ratio in sorted(ratios.items(), key=lambda item: -item[1]):
        if abs(ratio - 1) > SAME:
            typer.echo(f"{graph}: {ratio:.4f}")
    typer.echo(summary(ratios, searcher, rival))


def costs(file: Path, searcher: str, limit: str) -> dict[str, float]:
    """The searcher's cost by graph, in ms: the geometric mean over its seeds.

    Raises:
        typer.BadParameter: the file has no such results.
    """
    own = of(read(file), metric="cost", peer=searcher, setting=limit)
    if own.empty:
        raise typer.BadParameter(f"{file} has nothing of {searcher} within {limit}")
    found = own.groupby("model", sort=False).value
    return {str(graph): math.exp(statistics.fmean(map(math.log, costs))) for graph, costs in found}


def summary(ratios: Mapping[str, float], searcher: str, rival: str) -> str:
    """Summarise the cost ratios in one line.

    Args:
        ratios: of the searcher's cost to the rival's, by graph.
        searcher: its name.
        rival: name of the other searcher.
    """
    num_worse = sum(ratio > 1 + SAME for ratio in ratios.values())
    num_better = sum(ratio < 1 - SAME for ratio in ratios.values())
    mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
    count = f"{len(ratios) - num_worse} of {len(ratios)} graphs, better on {num_better}"
    names = f"{searcher} without the composites is no worse than {rival} with them on"
    return f"{names} {count}; geometric mean {mean:.4f}"


if __name__ == "__main__":
    typer.run(main)
