"""The data set of measured graphs: one JSON line for each graph, so that a run that was stopped goes on."""

from __future__ import annotations

import dataclasses
import json
import lzma
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from torchrlopt import _C


@dataclasses.dataclass(frozen=True)
class Row:
    """One graph on one executor.

    Attributes:
        base: what it was made of: "train 17", "test 3", "suite resnet18". Rows of one base and executor
            were measured together, the base itself first.
        families: of its blocks, or the name of the model.
        executor: what ran it.
        threads: of the kernels.
        processor: its name.
        steps: substitutions applied to the base.
        us: lower quartile of the times of a run, of every second one, in microseconds.
        again_us: the same of the other ones. Who chooses the least of many `us` finds there what it is worth.
        noise: standard error of `us`, as a share of it.
        is_calm: the process had its processors while these times were taken.
        text: the graph, see `torchrlopt._C.parse_graph`.
    """

    base: str
    families: tuple[str, ...]
    executor: str
    threads: int
    processor: str
    steps: int
    us: float
    again_us: float
    noise: float
    is_calm: bool
    text: str

    @property
    def graph(self) -> _C.Graph:
        """The graph itself."""
        return _C.parse_graph(self.text)


def append(path: Path, rows: Iterable[Row]) -> None:
    """Rows of one base at the end of a plain file, in one write."""
    lines = "".join(json.dumps(dataclasses.asdict(row)) + "\n" for row in rows)
    with path.open("a", encoding="utf-8") as file:
        file.write(lines)


def _open(path: Path) -> IO[str]:
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def read(paths: Sequence[Path]) -> Iterator[Row]:
    """The rows of files, plain ones or packed (`.jsonl.xz`); a last line that was cut off is left out.

    Raises:
        ValueError: a line in between is damaged.
    """
    for path in paths:
        with _open(path) as file:
            lines = file.readlines()
        for number, line in enumerate(lines, 1):
            try:
                given = json.loads(line)
                row = Row(**{**given, "families": tuple(given["families"])})
            except (ValueError, TypeError, KeyError) as error:
                if number == len(lines):
                    break
                raise ValueError(f"{path}, line {number}: no row of measured graphs: {error}") from error
            yield row


def groups(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows that were measured together, by base and executor, in order of appearance."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.base, row.executor), []).append(row)
    return found
