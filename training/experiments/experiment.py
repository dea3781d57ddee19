"""What an experiment is: an entry of the table of everything that can be reproduced."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from training.experiments.runs import AllFinished, Run, Scale, Workplace

Cell = str | float | int


@dataclasses.dataclass(frozen=True)
class Results:
    """What an experiment has to report of.

    Attributes:
        finished: its runs.
        scale: of them.
        place: where they were made.
    """

    finished: AllFinished
    scale: Scale
    place: Workplace


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper.

    Attributes:
        title: of its section in the report.
        source: where in which paper.
        runs: that it needs.
        report: writes its CSV and PNG into a folder; the lines of its section.
        note: what its section says of how it is made.
        is_of_bert: whether the paper's values beside it are those of its BERT.
    """

    title: str
    source: str
    runs: Callable[[Scale, Workplace], Sequence[Run[Any]]]
    report: Callable[[Results, Path], list[str]]
    note: str
    is_of_bert: bool = False


def table(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    return [*lines, *("| " + " | ".join(map(shown, row)) + " |" for row in rows)]


def shown(cell: Cell) -> str:
    """Numbers with three digits that count."""
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Six digits of each number; texts with commas are quoted."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            writer.writerow([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row])
