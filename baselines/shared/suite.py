"""Measures peers on one model after the other, telling how far it is and keeping what is done."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer
from rich.console import Console

from baselines.peers.case import PEERS, Case
from baselines.shared import terminal
from baselines.shared.comparison import failures, write_csv, write_kernels
from baselines.shared.rounds import Row, Settings, measure_models


def measure_suite(
    groups: Sequence[Sequence[Case]],
    settings: Settings,
    console: Console,
    csv: Path | None,
    kernels: Path | None = None,
) -> list[Row]:
    """The rows of all cases.

    Args:
        groups: The cases of each model, as `measure_models` takes them.
        settings: How long to measure.
        console: Where a line for each model goes.
        csv: A file that is written anew after each model, or those that compile together.
        kernels: Another one, for the kernels of the calls where the settings ask for them.
    """
    rows: list[Row] = []
    total = sum(len(cases) + settings.rounds for cases in groups)
    # The caches are new: a first call counts the compilation.
    with tempfile.TemporaryDirectory() as caches, terminal.progress(console) as progress:
        task = progress.add_task("starting", total=total)
        done = 0
        for some in _together(groups, settings.jobs):

            def announce(phase: str) -> None:
                progress.update(task, description=phase, advance=1)

            found = measure_models(some, settings, Path(caches), announce)
            # A step is announced when it begins, so the count is set right at the end.
            done += sum(len(cases) + settings.rounds for cases in some)
            progress.update(task, completed=done)
            for own in found:
                progress.console.print(_summary(own), highlight=False, soft_wrap=True)
                rows += own
            if csv is not None:
                write_csv(rows, csv)
            if kernels is not None:
                write_kernels(rows, kernels)
    return rows


def _together(groups: Sequence[Sequence[Case]], jobs: int) -> Iterator[Sequence[Sequence[Case]]]:
    """Models in order, as many at a time as have so many cases, but one at least."""
    start = 0
    while start < len(groups):
        end = start + 1
        while end < len(groups) and sum(map(len, groups[start : end + 1])) <= jobs:
            end += 1
        yield groups[start:end]
        start = end


def conclude(rows: Sequence[Row], console: Console) -> None:
    """Says why rows do not count.

    Raises:
        typer.Exit: None does; with status 1.
    """
    for line in failures(rows):
        console.print(line, style="red", highlight=False, markup=False, soft_wrap=True)
    if all(row.reason for row in rows):
        raise typer.Exit(1)


def _summary(rows: Sequence[Row]) -> str:
    """One line on one model."""
    parts = []
    for row in rows:
        if row.reason:
            parts.append(f"{row.case.label} failed")
        elif row.case.peer == PEERS[0]:
            parts.append(f"{PEERS[0]} {row.median_ms:.1f} ms")
        else:
            kept = f" ({row.kept})" if row.kept else ""
            parts.append(f"{row.case.label} " + ("-" if row.ratio is None else f"{row.ratio:.2f}x") + kept)
    case = rows[0].case
    return f"{case.model}, batch {case.batch}, {case.dtype}: {', '.join(parts)}"
