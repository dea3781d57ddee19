"""`torchrlopt bench`: the measurements of `api.bench` as a table, JSON, CSV and a plot."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.table import Table

from torchrlopt.api.bench.contestants import BASE, installed, names
from torchrlopt.api.bench.rounds import Row, Settings, measure
from torchrlopt.api.cli.models import load_model
from torchrlopt.compile.progress import progress
from torchrlopt.console import text_of
from torchrlopt.errors import OptionsError
from torchrlopt.machine.device import describe

COLUMNS = tuple(field.name for field in dataclasses.fields(Row))


def chosen(text: str) -> list[str]:
    """Parse contestant names, separated by commas, and put eager first; "all" means all that are installed.

    Raises:
        OptionsError: a name is unknown, or not installed.
    """
    here = installed()
    wanted = list(here) if text == "all" else [name.strip() for name in text.split(",")]
    for name in wanted:
        if name not in here:
            raise OptionsError(
                f"{name!r} cannot be timed here",
                expected=f"one of {', '.join(here)}",
                got="not installed" if name in names() else "unknown",
            )
    return list(dict.fromkeys([BASE, *wanted]))


def run(model: str, contestants: Sequence[str], settings: Settings) -> tuple[list[Row], bool]:
    """Measure, with a progress bar on a terminal; see `measure`.

    Raises:
        RlOptError: the model cannot be loaded.
    """
    load_model(model)  # reports its errors once, and not once per contestant
    with progress(model, len(contestants) + settings.rounds) as advance:
        return measure(model, contestants, settings, advance)


def data(model: str, rows: Sequence[Row], settings: Settings, is_whole: bool) -> dict[str, Any]:
    """Return all measurements, JSON-able."""
    return {
        "model": model,
        "device": describe(torch.device("cpu")),
        "settings": dataclasses.asdict(settings),
        "is_whole": is_whole,
        "rows": [dataclasses.asdict(row) for row in rows],
    }


def render(model: str, rows: Sequence[Row], settings: Settings) -> str:
    """Return a table, followed by the reasons why some have no numbers."""
    load = os.getloadavg()[0]
    table = Table(
        title=f"{model}, {settings.threads} threads, {settings.rounds} rounds, load {load:.1f}",
        box=box.SIMPLE,
        title_justify="left",
    )
    table.add_column("in", no_wrap=True)
    for heading in ("min ms", "median ms", "spread", f"over {BASE}", "first call s", "difference", "kept"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            _number(row.min_ms, ".3f"),
            _number(row.median_ms, ".3f"),
            _number(row.spread, ".0%"),
            _number(row.speedup, ".2f") + ("x" if row.speedup is not None else ""),
            _number(row.first_call_s, ".1f"),
            _number(row.difference, ".1e"),
            row.kept,
        )
    failures = [f"{row.name}: {row.reason}" for row in rows if row.reason]
    return "\n".join([text_of(table, width=120), *failures])


def _number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def write_csv(model: str, rows: Sequence[Row], settings: Settings, path: Path) -> None:
    """Write one line per contestant; numbers that were not measured are empty."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["model", "threads", "rounds", *COLUMNS])
        for row in rows:
            values = dataclasses.asdict(row)
            own = ["" if values[name] is None else values[name] for name in COLUMNS]
            writer.writerow([model, settings.threads, settings.rounds, *own])


def check_plot(path: Path | None) -> None:
    """Reject a plot that could not be drawn, before an hour is spent on measuring for it.

    Raises:
        OptionsError: matplotlib is not installed, or does not know the file type.
    """
    if path is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise OptionsError("a plot needs matplotlib, which is not installed", todo="pip install matplotlib")
    from matplotlib.figure import Figure  # slow to import

    known = Figure().canvas.get_supported_filetypes()
    if path.suffix[1:] not in known:
        raise OptionsError("no such kind of plot", expected=", ".join(sorted(known)), got=path.suffix)


def write_plot(model: str, rows: Sequence[Row], path: Path) -> None:
    """Draw bars of the median times, with a mark at the fastest call, for each that has numbers."""
    from matplotlib.figure import Figure  # slow to import

    good = [row for row in rows if row.median_ms is not None]
    figure = Figure(figsize=(7, 1.4 + 0.4 * len(good)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh([row.name for row in good], [row.median_ms or 0.0 for row in good])
    axes.plot([row.min_ms or 0.0 for row in good], [row.name for row in good], "k|", label="fastest call")
    axes.invert_yaxis()
    axes.set_xlabel("median milliseconds of a call")
    axes.set_title(model)
    axes.legend()
    figure.savefig(path, dpi=150)
