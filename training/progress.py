"""The progress bar of long-running commands."""

from __future__ import annotations

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


def progress_bar() -> Progress:
    """Description, bar and elapsed time."""
    return Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
