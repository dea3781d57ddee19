"""Reads the library's text files and lets the core parse them once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from torchrlopt import _C
from torchrlopt.errors import SubstitutionError

_FOLDER = Path(__file__).parent / "library"
_GENERATED = Path(__file__).parent / "generated"
_COMPOSITE = "composite"
_ENUMERATED = {"algebra", "convolution", "merge", "movement"}
FIRES = Path(__file__).parent / "fires.json"


def library_files(with_generated: bool = True) -> tuple[Path, ...]:
    """The files of the library, in the order in which they are read."""
    folders = (_FOLDER, _GENERATED) if with_generated else (_FOLDER,)
    files = (path for folder in folders for path in folder.glob("*.txt"))
    return tuple(sorted(files, key=lambda path: path.name))


def generated_folder() -> Path:
    """The folder of the generator's results."""
    return _GENERATED


def hand_written_text() -> str:
    """The text of the hand-written files."""
    return library_text(with_generated=False)


def foundation_text() -> str:
    """Hand-written substitutions without the families that the generator can find: its starting point."""
    library = _C.Library(hand_written_text())
    return _text_of(library, [name for name in library.names if library.family(name) not in _ENUMERATED])


def library_text(with_generated: bool = True) -> str:
    """The concatenated text of all files."""
    return "".join(file_text(path) for path in library_files(with_generated))


@cache
def load_library(
    *, primitives_only: bool = False, allow_assumed: bool = False, with_generated: bool = False
) -> _C.Library:
    """The parsed library; every call returns the same object.

    Args:
        primitives_only: leave out the substitutions marked `# composite`.
        with_generated: include the generated substitutions, all of them proved. The default excludes them:
            on the models measured they find hardly more than the others, and matching them takes time.
        allow_assumed: include the substitutions that are neither proved nor tested, only assumed.

    Raises:
        SubstitutionError: a substitution is malformed; the message names the file and line.
    """
    if primitives_only:
        return _primitives_of(load_library(allow_assumed=allow_assumed, with_generated=with_generated))
    try:
        return _C.Library(library_text(with_generated), allow_assumed)
    except SubstitutionError as error:
        path, line = _place(error.line, with_generated)
        raise SubstitutionError(error.reason, name=error.name, line=line, file=path.name) from error


def is_composite(library: _C.Library, name: str) -> bool:
    """Whether the library marks a substitution as a bundle of others."""
    return _COMPOSITE in library.doc(name).splitlines()


def _primitives_of(library: _C.Library) -> _C.Library:
    return subset_of(library, [name for name in library.names if not is_composite(library, name)])


def subset_of(library: _C.Library, names: Sequence[str]) -> _C.Library:
    """A library with some of the substitutions of another one.

    Args:
        library: the other one.
        names: substitutions to keep; they stay in the order of `library`.
    """
    return _C.Library(_text_of(library, names))


def _text_of(library: _C.Library, names: Sequence[str]) -> str:
    return "".join(f"# family: {library.family(name)}\n{library.text(name)}\n" for name in names)


def fires() -> Mapping[str, tuple[str, ...]]:
    """Suite models on which each substitution fires, as found by `baselines.search --parts library`."""
    found = json.loads(FIRES.read_text(encoding="utf-8"))
    return {name: tuple(models) for name, models in found.items()}


def file_text(path: Path) -> str:
    """The text of one file; ends with a newline so that files can be concatenated."""
    text = path.read_text(encoding="utf-8")
    return text if text.endswith("\n") else text + "\n"


def _place(line: int, with_generated: bool) -> tuple[Path, int]:
    """File and line number in it of a line of `library_text(with_generated)`."""
    before = 0
    files = library_files(with_generated)
    for path in files:
        count = file_text(path).count("\n")
        if line <= before + count:
            return path, line - before
        before += count
    return files[-1], line - before
