"""Tables of names and values, as printed by the commands."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from torchrlopt.console import text_of


def two_columns(title: str, *sections: Iterable[tuple[str, object]]) -> str:
    """Format names and values, with a line between the sections; None is shown as empty."""
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for section in sections:
        for name, value in section:
            table.add_row(name, "" if value is None else str(value))
        table.add_section()
    return text_of(table, width=100)
