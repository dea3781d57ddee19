"""Find substitutions by enumeration.

python -m training.generate --depth 2 --out found
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from torchrlopt import _C
from torchrlopt.console import Console
from torchrlopt.substitutions import library_text
from training.generate import _enumerate
from training.generate.emit import drop_unproved, write_library
from training.generate.found_library import FOUND, foundation_text
from training.generate.generator import COUNTERS, Parameters, State, peak_memory_gib, run


def generate(
    depth: Annotated[int, typer.Option(min=1, max=4, help="Operators of a side.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder of the texts and the state.")] = FOUND,
    seed: Annotated[int, typer.Option(help="Of all random data.")] = 0,
    world: Annotated[list[str] | None, typer.Option(help="What to enumerate over; default: all.")] = None,
    slices: Annotated[
        int, typer.Option(min=1, help="Parts that are joined apart: less memory, more time.")
    ] = 1,
    alone: Annotated[
        bool,
        typer.Option(
            "--alone", help="Without what people wrote about algebra, convolutions, merging and movement."
        ),
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Find nothing; take those without a proof out of the folder.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh/--resume", help="Start over, or resume the last run.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Enumerate small graphs, pair those that compute the same, and write new pairs as substitutions.

    Ctrl-C keeps the state; the same command continues from there.

    Example: python -m training.generate --depth 2 --out found
    """
    if alone and out == FOUND:
        raise typer.BadParameter("what is found alone needs a folder of its own: --out FOLDER")
    if prune:
        typer.echo(f"{drop_unproved(out)} without a proof are gone")
        return
    folder = out
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"generate_depth{depth}.json"
    text = foundation_text() if alone else library_text()
    parameters = Parameters(
        depth, seed, tuple(world or _enumerate.world_names()), slices, _C.Library(text).hash
    )
    if fresh:
        path.unlink(missing_ok=True)
    state = State.load(path, parameters)
    started = time.perf_counter() - state.seconds
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(), console=console, transient=True, disable=not sys.stderr.isatty(),
    ) as progress:  # fmt: skip
        task = progress.add_task("starting", total=None)

        def report(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total or None)

        try:
            run(state, text, path=path, report=report)
            written = write_library(state, folder, report)
        except KeyboardInterrupt:
            typer.echo(f"interrupted; the state is in {path}")
            raise typer.Exit(130) from None
    path.unlink(missing_ok=True)
    seconds = time.perf_counter() - started
    if as_json:
        counts = {name: state.counts[name] for name in COUNTERS}
        found = {**counts, "written": written, "seconds": seconds, "peak_memory_gib": peak_memory_gib()}
        typer.echo(json.dumps(found, indent=2))
    else:
        Console().print(_table(state, written, seconds))


def _table(state: State, written: dict[str, int], seconds: float) -> Table:
    table = Table(title="python -m training.generate", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, meaning in COUNTERS.items():
        table.add_row(meaning, f"{state.counts[name]:,}")
    for name, count in written.items():
        table.add_row(name, f"{count:,}")
    table.add_row("time", f"{seconds:.0f} s")
    table.add_row("peak memory", f"{peak_memory_gib():.2f} GiB")
    return table


if __name__ == "__main__":
    typer.run(generate)
