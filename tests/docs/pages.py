"""Parses the documentation: code blocks, links, paths, tables and sections."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

_FENCE = re.compile(r"^ *```(.*)$")
_HEADING = re.compile(r"^#+ (.*)$")


@dataclasses.dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        page: where it stands.
        line: of its first line in the page, from 1.
        language: the first word behind the fence.
        words: the others: how it is treated.
        text: what is in it.
    """

    page: Path
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def place(self) -> str:
        """For messages and names of tests."""
        return f"{name_of(self.page)}:{self.line}"


@dataclasses.dataclass(frozen=True)
class Section:
    """What stands between two headings: the lines outside code blocks, and the blocks."""

    page: Path
    heading: str
    lines: tuple[str, ...]
    blocks: tuple[Block, ...]

    @property
    def tables(self) -> list[list[list[str]]]:
        """Rows of cells without the line of dashes; the first row is the header."""
        tables: list[list[list[str]]] = []
        is_open = False
        for line in self.lines:
            if line.startswith("|"):
                if not is_open:
                    tables.append([])
                cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
                if not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
                    tables[-1].append(cells)
            is_open = line.startswith("|")
        return tables


def name_of(page: Path) -> str:
    """Relative to the root."""
    return page.relative_to(ROOT).as_posix()


def sections(page: Path) -> list[Section]:
    """The sections of a page in order; what stands before the first heading is one, too.

    Raises:
        ValueError: a code block is not closed.
    """
    found: list[Section] = []
    heading, lines, blocks = "", list[str](), list[Block]()
    fence: tuple[int, list[str]] | None = None
    inside: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        match = _FENCE.match(line)
        if fence is not None:
            if match and not match[1]:
                start, words = fence
                text = textwrap.dedent("\n".join(inside) + "\n")
                blocks.append(Block(page, start, words[0] if words else "", tuple(words[1:]), text))
                fence, inside = None, []
            else:
                inside.append(line)
        elif match:
            fence = (number + 1, match[1].split())
        elif title := _HEADING.match(line):
            found.append(Section(page, heading, tuple(lines), tuple(blocks)))
            heading, lines, blocks = title[1], [], []
        else:
            lines.append(line)
    if fence is not None:
        raise ValueError(f"{name_of(page)}:{fence[0]}: the code block is not closed")
    return [*found, Section(page, heading, tuple(lines), tuple(blocks))]


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page in order."""
    return [block for section in sections(page) for block in section.blocks]


def prose(page: Path) -> str:
    """A page without its code blocks, headings included, line breaks as spaces."""
    return " ".join(line for each in sections(page) for line in (each.heading, *each.lines))


def anchors(page: Path) -> set[str]:
    """What links to a page's headings may end in, made as GitHub makes them."""
    headings = (section.heading for section in sections(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[str]:
    """Targets of links and pictures outside code."""
    text = re.sub(r"`[^`]*`", "", prose(page))
    yield from re.findall(r"\]\(([^)\s]+)\)", text)


def code_words(page: Path) -> Iterator[str]:
    """What stands between backticks outside code blocks."""
    yield from re.findall(r"`([^`]+)`", prose(page))
