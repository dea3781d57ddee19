"""A line on the terminal while something takes long; nothing at all where standard error is no terminal."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[str], None]
"""Names the part that begins now; the one before it is done then."""


@contextmanager
def progress(title: str, total: int) -> Iterator[Advance]:
    """A bar of `total` parts on standard error, gone at the end; a function that does nothing elsewhere.

    Args:
        title: of the whole.
        total: how many parts there are at most.
    """
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    # slow to import, and seldom needed
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from torchrlopt.console import Console

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # What is captured on its way to the terminal is the user's: it stays where it goes.
    with Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        task, begun = bar.add_task(title, total=total), itertools.count()

        def advance(text: str) -> None:
            done = next(begun)
            bar.update(task, completed=done, total=max(total, done), description=f"{title}: {text}")

        yield advance
