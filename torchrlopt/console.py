"""The console of rich for texts that may come from files: shown as they are, and no markup."""

from __future__ import annotations

from typing import Any

import rich.console
from rich.text import Text

from torchrlopt.plain_text import printable


class Console(rich.console.Console):
    """A console to which "[red]" and ":boom:" are text, and "[/]" is no error.

    Args:
        options: as of rich.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Text of a cell, a title or a line; see rich."""
        return super().render_str(printable(text), **options)
