"""The substitution library: text files that a person reviews, parsed and indexed by the core.

`library/*.txt` hold one subject each; `load_library` is what the product uses. How a substitution is checked
is in `tests/substitutions/`, how one is added in the README.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from torchrlopt import _C
from torchrlopt.errors import SubstitutionError

_FOLDER = Path(__file__).parent / "library"


def library_files() -> tuple[Path, ...]:
    """The files of the library, in the order in which they are read."""
    return tuple(sorted(_FOLDER.glob("*.txt")))


def library_folder() -> Path:
    """Where the texts are."""
    return _FOLDER


def hand_written_text() -> str:
    """The text of the files that people wrote; generated ones begin with `generated`."""
    return "".join(_read(path) for path in library_files() if not path.name.startswith("generated"))


def library_text() -> str:
    """The text of all files, one after another."""
    return "".join(_read(path) for path in library_files())


@cache
def load_library() -> _C.Library:
    """The parsed library, the same object at every call.

    Raises:
        SubstitutionError: a substitution is malformed; the message names the file and the line in it.
    """
    try:
        return _C.Library(library_text())
    except SubstitutionError as error:
        path, line = _place(error.line)
        raise SubstitutionError(error.reason, name=error.name, line=line, file=path.name) from error


def _read(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return text if text.endswith("\n") else text + "\n"


def _place(line: int) -> tuple[Path, int]:
    """File and line in it of a line of `library_text()`."""
    before = 0
    for path in library_files():
        count = _read(path).count("\n")
        if line <= before + count:
            return path, line - before
        before += count
    return library_files()[-1], line - before
