"""The table of a comparison's CSV file in Markdown: `python -m baselines.table out.csv`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated

import typer

from baselines.peers.case import PEERS, Case, is_ours
from baselines.shared import csv_files
from baselines.shared.comparison import CSV_COLUMNS, LATER_COLUMNS, gains_of_plans


def main(
    file: Annotated[Path, typer.Argument(help="A CSV file that a comparison wrote.")],
) -> None:
    """Print the table of a comparison of peers for a page of text.

    Speed-ups are ratios of medians. Those of torchrlopt are also given over the best of the other peers, with
    memory and first call; or, where it has run with and without a plan, what the plan brings.

    Example: python -m baselines.table baselines/results/cpu_batch1_float32.csv
    """
    typer.echo(markdown(file))


def markdown(path: Path) -> str:
    """The tables of a file that `comparison.write_csv` wrote: one for each batch size and type.

    Raises:
        typer.BadParameter: There is no such file, or it is another table.
    """
    groups: dict[str, list[dict[str, str]]] = {}
    for line in csv_files.read(path, CSV_COLUMNS, LATER_COLUMNS):
        if line["median_ms"]:
            groups.setdefault(f"batch {line['batch']}, {line['dtype']}", []).append(line)
    if len(groups) == 1:
        return "\n".join(_table(lines) for lines in groups.values())
    return "\n\n".join(f"{name}\n\n{_table(lines)}" for name, lines in groups.items())


def _table(lines: Sequence[Mapping[str, str]]) -> str:
    """A row for each model that eager PyTorch has run."""
    cases = [(_label(line), line["model"], float(line["median_ms"]), line) for line in lines]
    base = {model: ms for label, model, ms, _ in cases if label == PEERS[0]}
    cases = [case for case in cases if case[1] in base]
    best = {m: min(ms for label, model, ms, _ in cases if model == m and not is_ours(label)) for m in base}
    ratios: dict[str, dict[str, float]] = {}
    for label, model, ms, _ in cases:
        ratios.setdefault(label, {})[model] = base[model] / ms
    gains = gains_of_plans(ratios)
    # Memory and first calls of so many variants would fill the page.
    labels = [] if gains else [label for label in ratios if label in PEERS[:2] or is_ours(label)]
    for label in filter(is_ours, labels):
        over = {model: best[model] / ms for own, model, ms, _ in cases if own == label}
        ratios[f"{label} / best peer"] = over
    ratios |= gains
    columns = [label for label in ratios if label != PEERS[0]]
    of = {(label, model): line for label, model, _, line in cases}
    rows = [["model", f"{PEERS[0]} ms", *columns, *(["peak MB", "first call s"] if labels else [])]]
    rows.append(["---"] * len(rows[0]))
    for model, ms in base.items():
        cells = [f"{ratios[column][model]:.2f}x" if model in ratios[column] else "-" for column in columns]
        own = [of.get((label, model)) for label in labels]
        if labels:
            for name, spec in (("peak_mb", ".0f"), ("first_call_s", ".1f")):
                each = ("-" if line is None else format(float(line[name]), spec) for line in own)
                cells.append(" / ".join(each))
        rows.append([model, f"{ms:.1f}", *cells])
    means = [f"**{geometric_mean(list(ratios[column].values())):.2f}x**" for column in columns]
    notes = [f"({' / '.join(labels)})", "(the same)"] if labels else []
    rows.append(["**geomean**", "", *means, *notes])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _label(line: Mapping[str, str]) -> str:
    own = {name: line[name] for name in ("executor", "weights", "searcher")}
    return Case(
        line["model"], line["peer"], int(line["batch"]), line["dtype"], int(line["threads"]), **own
    ).label


if __name__ == "__main__":
    typer.run(main)
