"""A rich console for untrusted text: it prints markup literally."""

from __future__ import annotations

import io
from typing import Any

import rich.console
from rich.text import Text

from torchrlopt.plain_text import printable


class Console(rich.console.Console):
    """A console that prints "[red]" and ":boom:" literally and accepts "[/]" without an error.

    Args:
        options: passed to `rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text of a cell, a title or a line; see rich."""
        return super().render_str(printable(text), **options)


def text_of(*parts: object, width: int) -> str:
    """Return what a console of this width prints."""
    out = io.StringIO()
    console = Console(file=out, width=width)
    for part in parts:
        console.print(part, highlight=False)
    return out.getvalue().rstrip()
