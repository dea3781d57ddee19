"""How each substitution was checked: the `proof` line of its text, read and written.

    proof z3 9f3c21d0 axioms=0c52b1fe cases=12 instances=48 members=2,3,4
    proof evaluation 9f3c21d0 bindings=200 bound=2^-58
    proof assumed 9f3c21d0 no definition of the operator

The first word is the method, the second a hash of the text that the substitution comes from. A line with the
hash of another text is stale: the text was changed and not proved again. There is no date, because a
proof does not age.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchrlopt import _C

State = Literal["proved", "tested", "assumed", "stale", "unchecked"]

#: What each method shows.
STATES: Mapping[str, State] = {"z3": "proved", "evaluation": "tested", "assumed": "assumed"}
AXIOMS = Path(__file__).parent / "axioms.txt"
_HASH_DIGITS = 8


@dataclass(frozen=True)
class Record:
    """A proof line.

    Attributes:
        method: "z3": equal for all sizes, numbers and elements in every case drawn, from the axioms;
            "evaluation": equal on the instances drawn, within the bound; "assumed": neither.
        hash: of the text, 8 hexadecimal digits.
        details: the rest: `cases=12 bound=2^-58`, or the reason.
    """

    method: str
    hash: str
    details: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.method, self.hash, self.details) if part)

    def detail(self, name: str) -> str:
        """The value of `name=value` in the details; empty if absent."""
        found = re.search(rf"(?:^| ){re.escape(name)}=(\S+)", self.details)
        return found[1] if found else ""


def read_record(library: _C.Library, name: str) -> Record | None:
    """The record of a substitution; None if there is none of this form."""
    parts = library.proof(name).split(" ", 2)
    if len(parts) < 2 or parts[0] not in STATES or not re.fullmatch(r"[0-9a-f]{8}", parts[1]):
        return None
    return Record(parts[0], parts[1], parts[2] if len(parts) > 2 else "")


def text_hash(library: _C.Library, name: str) -> str:
    """Hash of a substitution's source text, which includes its optional inputs but not its proof."""
    return library.proof_hash(name)[:_HASH_DIGITS]


def axioms_hash() -> str:
    """Hash of the axioms, without comments."""
    return _C.Library(AXIOMS.read_text(encoding="utf-8")).hash[:_HASH_DIGITS]


def state_of(library: _C.Library, name: str, axioms: str | None = None) -> State:
    """How far a substitution is checked; a proof from axioms of another hash is stale, if one is given."""
    record = read_record(library, name)
    if record is None:
        return "unchecked"
    if record.hash != text_hash(library, name):
        return "stale"
    if record.method == "z3" and axioms is not None and record.detail("axioms") != axioms:
        return "stale"
    return STATES[record.method]


def texts_of(library: _C.Library) -> dict[str, list[str]]:
    """Substitutions by text, named after the first; a text with optional inputs stands for several."""
    texts: dict[str, list[str]] = {}
    by_hash: dict[str, str] = {}
    for name in library.names:
        first = by_hash.setdefault(library.proof_hash(name), name)
        texts.setdefault(first, []).append(name)
    return texts


def with_records(text: str, records: Mapping[str, Record]) -> str:
    """A library text with proof lines inserted or replaced for the texts named."""
    blocks = re.split(r"^(?=substitution )", text, flags=re.MULTILINE)
    return blocks[0] + "".join(_with_record(block, records) for block in blocks[1:])


def _with_record(block: str, records: Mapping[str, Record]) -> str:
    record = records.get(block.split()[1])
    if record is None:
        return block
    lines = block.rstrip("\n").split("\n")
    # Trailing comments belong to the next substitution.
    end = max(i for i, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")) + 1
    body = [line for line in lines[:end] if not line.startswith("proof")]
    return "\n".join([*body, f"proof {record}", *block.split("\n")[end:]])


def write_records(path: Path, records: Mapping[str, Record]) -> bool:
    """Writes records into a library file; returns whether it changed."""
    text = path.read_text(encoding="utf-8")
    new = with_records(text, records)
    if new != text:
        path.write_text(new, encoding="utf-8")
    return new != text
