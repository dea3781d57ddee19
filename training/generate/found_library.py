"""What the generator has found, next to the library of the package, which does not load it."""

from __future__ import annotations

from pathlib import Path

from torchrlopt import _C
from torchrlopt.substitutions import file_text, library_text
from torchrlopt.substitutions.load import text_of

FOUND = Path(__file__).parent / "found"
#: Families of the library that the generator can find by itself.
_ENUMERATED = {"algebra", "convolution", "merge", "movement"}


def found_text() -> str:
    """The text of all substitutions that were found."""
    return "".join(file_text(path) for path in sorted(FOUND.glob("*.txt")))


def foundation_text() -> str:
    """The library without the families that the generator can find: its starting point."""
    library = _C.Library(library_text())
    return text_of(library, [name for name in library.names if library.family(name) not in _ENUMERATED])
