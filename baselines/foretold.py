"""How well runtimes' times foretell another executor's: `python -m baselines.foretold --help`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from baselines.graphs import graph_of
from baselines.shared import csv_files
from baselines.shared.comparison import CSV_COLUMNS, LATER_COLUMNS
from torchrlopt.executor_table import BASELINE
from torchrlopt.executors import registry
from torchrlopt.judge.policy import Policy
from torchrlopt.plan.foreseen import price_ratio

EXECUTOR, PEER = "inductor", "inductor_freezing"
"""Of which it is foretold, and the peer that runs a model in it."""


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


def main(files: Annotated[list[Path], typer.Argument(help="CSV files that comparisons wrote.")]) -> None:
    """Print a row for each model and file in which inductor and a runtime were timed, in float32.

    What inductor takes is foretold by the time of a runtime and the typical prices of both; where several
    ran, by the one that foretells least. The runtimes and inductor are those of the comparison, without our
    plans. `executor="auto"` leaves out what is foretold to take 0.9 times as long as the best, or longer;
    "loss" is what it costs to take the best of the runtimes and of our executors by name.

    Example: python -m baselines.foretold baselines/results/cpu_batch1_float32.csv
    """
    titles = ("file", "model", "real / foretold", "foretold / best", "left out", "loss")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    found: list[Row] = []
    for path in files:
        for row in rows_of(csv_files.read(path, CSV_COLUMNS, LATER_COLUMNS)):
            is_out = "yes" if row.foretold >= Policy().least_predicted else "no"
            figures = (f"{row.real:.2f}", f"{row.foretold:.2f}", is_out, f"{row.loss:.1%}")
            lines.append(f"| {' | '.join((path.stem, row.model, *figures))} |")
            found.append(row)
    if not found:
        raise typer.BadParameter(f"no model was timed in {EXECUTOR} and in a runtime that foretells it")
    out = [row for row in found if row.foretold >= Policy().least_predicted]
    least = min(row.real for row in found)
    said = f"{len(out)} of {len(found)} are left out; the least that came is {least:.2f} of what is foretold"
    worst = max((row.loss for row in out), default=0.0)
    typer.echo("\n".join((*lines, "", f"{said}, and leaving out costs {max(worst, 0.0):.1%} at most.")))


def rows_of(lines: Iterable[Mapping[str, str]]) -> list[Row]:
    """A row for each model.

    Args:
        lines: Of the CSV file of a comparison.
    """
    times: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for line in lines:
        # What "auto" took may be inductor itself; prices are of graphs in float32.
        is_choice = line["executor"] in ("auto", "default")
        if line["median_ms"] and line["peer"] != BASELINE and not is_choice and line["dtype"] == "float32":
            label = "/".join(filter(None, (line["peer"], line["executor"], line["weights"])))
            times[line["model"], int(line["batch"])][label] = float(line["median_ms"])
    found = []
    for (model, batch), own in times.items():
        others = {name: ms for name, ms in own.items() if EXECUTOR not in name}
        runtimes = [name for name in registry.row(EXECUTOR).foretold_by if name in others]
        if PEER in own and runtimes:
            graph = graph_of(model, batch)
            foretold = min(others[name] * price_ratio(graph, {}, EXECUTOR, name) for name in runtimes)
            best = min(others.values())
            found.append(Row(model, own[PEER] / foretold, foretold / best, best / own[PEER] - 1))
    return found


if __name__ == "__main__":
    typer.run(main)
