"""Common command-line arguments and their validation before anything is measured."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from torchrlopt import executor_table, searcher_table

_Number = TypeVar("_Number", int, float)


def choose(text: str, known: Sequence[str], what: str, usual: Sequence[str] | None = None) -> list[str]:
    """Split a comma-separated list, `all` for everything, in the given order and without duplicates.

    Args:
        text: what the user wrote.
        known: every valid name.
        what: what the names denote, for messages.
        usual: what `all` stands for, if not all known names.

    Raises:
        typer.BadParameter: A name is not known; the message suggests the nearest.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return list(known if usual is None else usual)
    if not names:
        raise typer.BadParameter(f"no {what} given; choose from: {', '.join(known)}")
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"choose from: {', '.join(known)}"
            raise typer.BadParameter(f"no {what} named {name!r}; {hint}")
    return list(dict.fromkeys(names))


def one(text: str, known: Sequence[str], what: str) -> str:
    """A single known name; else raises typer.BadParameter like `choose`."""
    names = choose(text, known, what)
    if len(names) != 1:
        raise typer.BadParameter(f"one {what} at a time; got {text!r}")
    return names[0]


def numbers(text: str, kind: Callable[[str], _Number], what: str, least: float, most: float) -> list[_Number]:
    """Split a comma-separated list of numbers.

    Args:
        text: what the user wrote.
        kind: int or float.
        what: what the numbers denote, for the message.
        least: smallest valid number.
        most: largest valid number.

    Raises:
        typer.BadParameter: One is not such a number, or there is none.
    """
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(least <= each <= most for each in found):
        raise typer.BadParameter(
            f"expected {what} separated by commas, each from {least:g} to {most:g}, got {text!r}"
        )
    return found


def searchers() -> tuple[str, ...]:
    """The names of torchrlopt's searchers that are currently registered."""
    return tuple(row.name for row in searcher_table.ROWS)


def writable(path: Path | None) -> Path | None:
    """Return the path; raises typer.BadParameter if the file's folder does not exist."""
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"no folder {str(path.parent)!r} to write {path.name!r} into")
    return path


Models = Annotated[str, typer.Option(help="Models of the suite, separated by commas, or 'all'.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds of each peer, in turn.")]
PricesOf = Annotated[str, typer.Option(help=f"Whose prices are used: {', '.join(executor_table.names())}.")]
PrimitivesOnly = Annotated[bool, typer.Option(help="Without the library's composites.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Keep the rows of the CSV file, and measure what it lacks.")
]
CsvFile = Annotated[
    Path | None, typer.Option(help="CSV file to write, anew after each model.", callback=writable)
]
PlotFile = Annotated[Path | None, typer.Option(help="Plot to draw: .png, .svg or .pdf.", callback=writable)]
