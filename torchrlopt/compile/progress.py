"""A progress line on the terminal for slow steps; nothing if standard error is not a terminal."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[str], None]
"""Names the part that begins now; the previous one is then done."""


@contextmanager
def progress(title: str, total: int) -> Iterator[Advance]:
    """Show a bar of `total` parts on standard error, removed at the end; a no-op if it is not a terminal."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    # slow to import, and seldom needed
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from torchrlopt.console import Console

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Do not capture stdout and stderr: output on them is the user's.
    with Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        task, begun = bar.add_task(title, total=total), itertools.count()

        def advance(text: str) -> None:
            done = next(begun)
            bar.update(task, completed=done, total=max(total, done), description=f"{title}: {text}")

        yield advance
