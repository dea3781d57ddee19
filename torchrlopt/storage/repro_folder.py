"""Reproductions of failures as text files, written to a folder on request."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "TORCHRLOPT_REPRO_DIR"


@dataclasses.dataclass(frozen=True)
class Repro:
    """Files by name; they contain no tensors and no weights.

    Attributes:
        name: identical for identical failures; names the subfolder if the user chose one folder for all
            failures.
        files: their contents, by file name.
    """

    name: str
    files: Mapping[str, str]

    def write(self, folder: str | Path) -> Path:
        """Write the files into a folder, creating it if necessary.

        Raises:
            OSError: it cannot be written.
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (place / name).write_text(text, encoding="utf-8")
        return place


def folder_for_all(given: str | None) -> Path | None:
    """Return the folder for all failures, from the option or else the environment, or None."""
    named = given or os.environ.get(VARIABLE)
    return Path(named) if named else None
