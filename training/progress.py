"""The progress bar of everything here that takes minutes."""

from __future__ import annotations

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


def progress_bar() -> Progress:
    """What is being done, a bar, and the time so far."""
    return Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
