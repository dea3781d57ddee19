"""What repeats a failure, as texts; written as a folder where the user asks for it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "TORCHRLOPT_REPRO_DIR"


@dataclasses.dataclass(frozen=True)
class Repro:
    """Files by name; no tensor and no weight is in them.

    Attributes:
        name: the same for the same failure: of the folder, where the user named one for all of them.
        files: their texts.
    """

    name: str
    files: Mapping[str, str]

    def write(self, folder: str | Path) -> Path:
        """Write the files into a folder, which is made where there is none.

        Raises:
            OSError: it cannot be written.
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (place / name).write_text(text, encoding="utf-8")
        return place


def folder_for_all(given: str | None) -> Path | None:
    """Where every failure is written: the option's folder, else the environment's, if there is one."""
    named = given or os.environ.get(VARIABLE)
    return Path(named) if named else None
