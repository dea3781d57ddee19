"""HTML made of elements: whatever is not an `Html` already is text, and is escaped."""

from __future__ import annotations

import html
import json
from typing import Any

_VOID = ("input", "meta")  # elements without content


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(child: object) -> Html:
    """A child of an element: HTML as it is, anything else as text."""
    return child if isinstance(child, Html) else Html(html.escape(str(child)))


def join(*children: object) -> Html:
    """Children one after another; None is left out."""
    return Html("".join(escaped(child) for child in children if child is not None))


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """An element.

    Args:
        name: of the element.
        children: HTML, or text that is escaped; None is left out.
        attributes: by name, with "_" for "-"; `class_` for `class`. None and False are left out, True is a
            bare name.
    """
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{given}>" if name in _VOID else f"<{name}{given}>{join(*children)}</{name}>")


def data(identifier: str, value: Any) -> Html:
    """JSON that a script of the page reads. No text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    safe = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return Html(f'<script type="application/json" id="{html.escape(identifier)}">{safe}</script>')


def table(caption: str, head: list[str], rows: list[list[object]], numbers: set[int] | None = None) -> Html:
    """A table with a caption and headers for every column; the first column heads its row.

    Args:
        caption: what it shows.
        head: one for each column.
        rows: cells.
        numbers: columns that are aligned to the right.
    """
    right = numbers or set()

    def cell(kind: str, at: int, child: object, **attributes: object) -> Html:
        return element(kind, child, class_="number" if at in right else None, **attributes)

    header = element("tr", *(cell("th", at, each, scope="col") for at, each in enumerate(head)))
    body = [
        element(
            "tr",
            *(
                cell("td", at, each) if at else cell("th", at, each, scope="row")
                for at, each in enumerate(row)
            ),
        )
        for row in rows
    ]
    inner = element("table", element("caption", caption), element("thead", header), element("tbody", *body))
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)
