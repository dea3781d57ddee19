"""How well runtimes' times foretell another executor's: `python -m baselines.foretold --help`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from baselines.graphs import graph_of
from baselines.shared import csv_files
from baselines.shared.comparison import CSV_COLUMNS, LATER_COLUMNS
from torchrlopt.compile.contest import FORETOLD
from torchrlopt.executors import registry
from torchrlopt.plan.foreseen import price_ratio

_PEERS = {"inductor": "inductor_freezing"}
"""The peer that runs a model in an executor, where its name is another one."""


class Row(NamedTuple):
    """What is known of one model in one file.

    Attributes:
        real: time over what is foretold, by the runtime that foretells least.
        foretold: what is foretold over the best time of all others.
        loss: of who takes the best of the others, against the executor; below 0 where those are faster.
    """

    model: str
    real: float
    foretold: float
    loss: float


def main(
    files: Annotated[list[Path], typer.Argument(help="CSV files that comparisons wrote.")],
    executor: Annotated[str, typer.Option(help="Of which it is foretold.")] = "inductor",
) -> None:
    """Print a row for each model and file in which this executor and a runtime were timed.

    What an executor takes is foretold by the time of a runtime and the typical prices of both; where several
    ran, by the one that foretells least. `executor="auto"` leaves out what is foretold to take 0.9 times as
    long as the best, or longer; "loss" is what that costs.

    Example: python -m baselines.foretold baselines/results/cpu_batch1_float32.csv
    """
    titles = ("file", "model", "real / foretold", "foretold / best", "left out", "loss")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    found: list[Row] = []
    for path in files:
        times: dict[str, dict[str, float]] = {}
        for line in csv_files.read(path, CSV_COLUMNS, LATER_COLUMNS):
            if line["median_ms"] and line["peer"] != "eager":
                peer = "/".join(filter(None, (line["peer"], line["executor"], line["weights"])))
                own = times.setdefault(line["model"], {"batch": float(line["batch"])})
                own[peer] = float(line["median_ms"])
        for row in rows_of(times, executor):
            is_out = "yes" if row.foretold >= FORETOLD else "no"
            figures = (f"{row.real:.2f}", f"{row.foretold:.2f}", is_out, f"{row.loss:.1%}")
            cells = (path.stem, row.model, *figures)
            lines.append(f"| {' | '.join(cells)} |")
            found.append(row)
    if not found:
        raise typer.BadParameter(f"no model was timed in {executor} and in a runtime that foretells it")
    out = [row for row in found if row.foretold >= FORETOLD]
    least = min(row.real for row in found)
    said = f"{len(out)} of {len(found)} are left out; the least that came is {least:.2f} of what is foretold"
    worst = max((row.loss for row in out), default=0.0)
    typer.echo("\n".join((*lines, "", f"{said}, and leaving out costs {max(worst, 0.0):.1%} at most.")))


def rows_of(times: Mapping[str, Mapping[str, float]], executor: str) -> list[Row]:
    """A row for each model.

    Args:
        times: Milliseconds by peer, and the batch, of each model; not of eager PyTorch.
        executor: Of which it is foretold.
    """
    peer = _PEERS.get(executor, executor)
    found = []
    for model, own in times.items():
        others = {name: ms for name, ms in own.items() if name != "batch" and not name.startswith(executor)}
        runtimes = [name for name in registry.row(executor).foretold_by if name in others]
        if peer not in own or not runtimes:
            continue
        graph = graph_of(model, int(own["batch"]))
        foretold = min(others[name] * price_ratio(graph, {}, executor, name) for name in runtimes)
        best = min(others.values())
        found.append(Row(model, own[peer] / foretold, foretold / best, best / own[peer] - 1))
    return found


if __name__ == "__main__":
    typer.run(main)
