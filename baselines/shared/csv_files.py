"""CSV files with named columns."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import typer


def write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a file atomically: it is written to a temporary file and moved into place.

    Args:
        path: Output path.
        columns: Names of the columns.
        rows: The values of each row, in the order of the columns.
    """
    aside = path.with_name(path.name + ".part")
    with aside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
    aside.replace(path)


def read(path: Path, columns: Sequence[str], later: Sequence[str] = ()) -> list[dict[str, str]]:
    """The rows of a file, as dictionaries by column name.

    Args:
        path: A file that `write` wrote.
        columns: Names of the columns.
        later: Columns that older files lack; they are read as empty.

    Raises:
        typer.BadParameter: There is no such file, or it is another table.
    """
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {path}")
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        found = reader.fieldnames or []
        old = [name for name in columns if name not in later]
        if list(found) not in (list(columns), old):
            raise typer.BadParameter(
                f"{path}: expected the columns {', '.join(columns)}, got {', '.join(found)}"
            )
        return [dict.fromkeys(later, "") | row for row in reader]
