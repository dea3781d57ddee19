"""Reads the library's text files and lets the core parse them once."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

from torchrlopt import _C
from torchrlopt.errors import SubstitutionError

_FOLDER = Path(__file__).parent / "library"
_COMPOSITE = "composite"
FIRES = Path(__file__).parent / "fires.json"


def library_files() -> tuple[Path, ...]:
    """The files of the library, in the order in which they are read."""
    return tuple(sorted(_FOLDER.glob("*.txt"), key=lambda path: path.name))


def library_text() -> str:
    """The concatenated text of all files."""
    return "".join(file_text(path) for path in library_files())


@cache
def load_library(*, primitives_only: bool = False, allow_assumed: bool = False) -> _C.Library:
    """The parsed library; every call returns the same object.

    Args:
        primitives_only: leave out the substitutions marked `# composite`.
        allow_assumed: include the substitutions that are neither proved nor tested, only assumed.

    Raises:
        SubstitutionError: a substitution is malformed; the message names the file and line.
    """
    if primitives_only:
        return _primitives_of(load_library(allow_assumed=allow_assumed))
    try:
        return _C.Library(library_text(), allow_assumed)
    except SubstitutionError as error:
        path, line = _place(error.line)
        raise SubstitutionError(error.reason, name=error.name, line=line, file=path.name) from error


def is_composite(library: _C.Library, name: str) -> bool:
    """Whether the library marks a substitution as a bundle of others."""
    return _COMPOSITE in library.doc(name).splitlines()


def _primitives_of(library: _C.Library) -> _C.Library:
    return subset_of(library, [name for name in library.names if not is_composite(library, name)])


def subset_of(library: _C.Library, names: Sequence[str]) -> _C.Library:
    """A library with some of the substitutions of another one, in its order."""
    return _C.Library(text_of(library, names))


def library_without(names: Collection[str]) -> _C.Library:
    """The library without the substitutions of these names, parsed once; other names are ignored."""
    return _without(frozenset(names))


@cache
def _without(names: frozenset[str]) -> _C.Library:
    library = load_library()
    kept = [name for name in library.names if name not in names]
    return library if len(kept) == len(library) else subset_of(library, kept)


def text_of(library: _C.Library, names: Sequence[str]) -> str:
    """The text of some of the substitutions of a library."""
    return "".join(f"# family: {library.family(name)}\n{library.text(name)}\n" for name in names)


def fires() -> Mapping[str, tuple[str, ...]]:
    """Suite models on which each substitution fires, as found by `baselines.search --parts library`."""
    found = json.loads(FIRES.read_text(encoding="utf-8"))
    return {name: tuple(models) for name, models in found.items()}


def file_text(path: Path) -> str:
    """The text of one file; ends with a newline so that files can be concatenated."""
    text = path.read_text(encoding="utf-8")
    return text if text.endswith("\n") else text + "\n"


def _place(line: int) -> tuple[Path, int]:
    """File and line number in it of a line of `library_text()`."""
    before = 0
    files = library_files()
    for path in files:
        count = file_text(path).count("\n")
        if line <= before + count:
            return path, line - before
        before += count
    return files[-1], line - before
