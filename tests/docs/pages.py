"""Parses the documentation: code blocks, links and paths."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

_BLOCK = re.compile(r"^ *```(.*)\n((?:.*\n)*?) *```\n", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        page: where it stands.
        line: of its first line in the page, from 1.
        kind: what stands behind the fence: the language, and how it is treated.
        text: what is in it.
    """

    page: Path
    line: int
    kind: str
    text: str

    @property
    def place(self) -> str:
        """For messages and names of tests."""
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    """Relative to the root."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start(2)) + 1, found[1].strip(), textwrap.dedent(found[2]))
        for found in _BLOCK.finditer(text)
    ]


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """What links to a page's headings may end in, made as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """Targets of links and pictures outside code."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose(page)))


def code_words(page: Path) -> Iterator[str]:
    """What stands between backticks outside code blocks, line breaks as spaces."""
    yield from (word.replace("\n", " ") for word in re.findall(r"`([^`]+)`", prose(page)))
