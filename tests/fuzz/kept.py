"""Failures as small text files in `cases/`: a line of JSON, and a body.

`test_kept.py` replays them as regression tests.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "cases"


@dataclasses.dataclass(frozen=True)
class Case:
    """A kept failure.

    Attributes:
        what: the fuzzer that knows how to replay it.
        fields: by name.
        body: a graph as text, a program; what the fuzzer wants.
    """

    what: str
    fields: Mapping[str, str]
    body: str


def format_case(what: str, fields: Mapping[str, str], body: str = "") -> str:
    """The text of a case."""
    return f"{json.dumps({'what': what, **fields})}\n{body}"


def parse_case(text: str) -> Case:
    """What `format_case` wrote; a comment may stand above it."""
    head, _, body = text.partition("\n")
    if head.startswith("#"):
        head, _, body = body.partition("\n")
    fields = json.loads(head)
    return Case(fields.pop("what"), fields, body)


def keep(text: str, reason: str, folder: Path = FOLDER) -> Path:
    """Write a case, with the reason above it; the same case is one file."""
    case = parse_case(text)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{case.what}_{hashlib.sha256(text.encode()).hexdigest()[:8]}.txt"
    path.write_text(f"# {reason}\n{text}", encoding="utf-8")
    return path
