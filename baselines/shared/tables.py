"""The long table of all benchmarks, with one row per measured value, and its output formats."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import typer
from rich import box
from rich.table import Table

from baselines.shared import terminal

COLUMNS: dict[str, str] = {
    "benchmark": "which of the commands",
    "model": "what was run, or searched: a model, a graph, or the call of a kernel",
    "peer": "who ran it",
    "setting": "what else was chosen, such as a limit of time",
    "batch": "size of the batch",
    "dtype": "type of weights and inputs",
    "threads": "of the kernels",
    "metric": "what was measured",
    "value": "how much; empty where the peer failed",
    "unit": "of the value",
    "round": "which repetition: a round, a run, a seed or a variant; empty where it is the median of all",
    "note": "what is no number: why a peer failed, or what was kept",
    "machine": "processor and versions",
    "commit": "of this repository",
}
"""Names of the columns, and what they hold."""
_NUMBERS = ("batch", "threads", "value", "round")


class Results:
    """Rows of the long table, and the file that `save` rewrites.

    Args:
        benchmark: the command.
        path: of a CSV file; None for none.
        resume: whether to begin with the rows that the file has from an earlier run.
        **common: values of columns that are the same in all rows.
    """

    def __init__(self, benchmark: str, path: Path | None = None, resume: bool = False, **common: Any) -> None:
        self._path = path
        self._common = {"benchmark": benchmark, "machine": terminal.machine(), "commit": commit(), **common}
        self._rows: list[dict[str, Any]] = []
        if resume and path is not None and path.is_file():
            frame = read(path)
            self._rows += frame.astype(object).where(frame.notna(), None).to_dict("records")

    def add(
        self, model: str, peer: str, metric: str, value: float | None, unit: str = "", **other: Any
    ) -> None:
        """Add one value; `other` are the remaining columns by name."""
        row = {"model": model, "peer": peer, "metric": metric, "value": value, "unit": unit}
        self._rows.append(self._common | row | other)

    @property
    def frame(self) -> pd.DataFrame:
        """All rows so far."""
        frame = pd.DataFrame(self._rows, columns=list(COLUMNS))
        for name in _NUMBERS:
            frame[name] = pd.to_numeric(frame[name])
        texts = {name: frame[name].astype(object).fillna("") for name in COLUMNS if name not in _NUMBERS}
        return frame.assign(**texts)

    def save(self) -> None:
        """Write the file, if there is one."""
        if self._path is not None:
            write(self.frame, self._path)


def write(frame: pd.DataFrame, path: Path) -> None:
    """Write a long table."""
    shown = frame.copy()
    for name in ("round", "batch", "threads"):
        shown[name] = shown[name].astype("Int64")
    write_whole(shown, path, float_format="%.9g")


def write_whole(frame: pd.DataFrame, path: Path, **how: Any) -> None:
    """Write a CSV file atomically: to a temporary file, which is moved into place."""
    aside = path.with_name(path.name + ".part")
    frame.to_csv(aside, index=False, **how)
    aside.replace(path)


def read(*paths: Path) -> pd.DataFrame:
    """The rows of long tables; missing texts are empty.

    Raises:
        typer.BadParameter: there is no such file, or it is another table.
    """
    frames = []
    for path in paths:
        if not path.is_file():
            raise typer.BadParameter(f"there is no file {path}")
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
        if list(frame) != list(COLUMNS):
            expected, got = ", ".join(COLUMNS), ", ".join(frame)
            raise typer.BadParameter(f"{path}: expected the columns {expected}, got {got}")
        frames.append(frame)
    frame = pd.concat(frames, ignore_index=True)
    for name in _NUMBERS:  # only these: a commit hash may look like a number, too
        frame[name] = pd.to_numeric(frame[name])
    return frame


def of(frame: pd.DataFrame, **wanted: str) -> pd.DataFrame:
    """The rows that have these values."""
    for name, value in wanted.items():
        frame = frame[frame[name] == value]
    return frame


def in_order(values: Iterable[Any]) -> list[Any]:
    """Distinct values, in order of first appearance."""
    return list(dict.fromkeys(values))


def commit() -> str:
    """Commit of this repository, with "+" if files differ from it; empty without git."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude", "*"]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False, env=environment)
    except OSError:
        return ""
    return done.stdout.strip()


def markdown(shown: pd.DataFrame) -> str:
    """A table of texts in Markdown."""
    rows = [list(shown), ["---"] * shown.shape[1], *shown.values.tolist()]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def rich(title: str, shown: pd.DataFrame) -> Table:
    """A table of texts for the terminal, with figures right-aligned."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE)
    for name in shown:
        is_figure = all(cell in ("", "-") or str(cell).strip("*(")[:1].isdigit() for cell in shown[name])
        made.add_column(str(name), justify="right" if is_figure else "left", no_wrap=is_figure)
    for row in shown.values.tolist():
        made.add_row(*(str(cell).strip("*") for cell in row))
    return made
