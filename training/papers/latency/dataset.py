"""The measured graphs, one JSON line each, so that an interrupted run continues where its file ends.

base: what a graph was made of ("train 17", "test 3", "suite resnet18"). Rows of one base and executor were
    measured together, the base itself first and greedy's graph second.
families: of its blocks, or the name of the model.
executor, threads, processor: what ran it.
steps: substitutions applied to the base.
us: lower quartile of every second run time, in microseconds.
again_us: the same of the other run times, for an unbiased estimate after choosing the least of many `us`.
noise: standard error of `us`, as a share of it.
is_calm: the process did not have to wait for its processors during these times.
text: the graph, see `torchrlopt._C.parse_graph`.
"""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

DATA = Path(__file__).parent / "measured"
COLUMNS = (
    "base", "families", "executor", "threads", "processor", "steps", "us", "again_us", "noise", "is_calm",
    "text",
)  # fmt: skip


def append(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append the rows of one base to an uncompressed file, in one write."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    with path.open("a", encoding="utf-8") as file:
        file.write(lines)


def read(paths: Sequence[Path]) -> pd.DataFrame:
    """Read the rows of files, plain or compressed (`.jsonl.xz`); an incomplete last line is ignored.

    Raises:
        ValueError: another line is damaged.
    """
    found = []
    for path in paths:
        with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open() as file:
            text = file.read()
        whole = io.StringIO(text[: text.rfind("\n") + 1])
        try:
            found.append(pd.read_json(whole, lines=True).reindex(columns=list(COLUMNS)))
        except ValueError as error:
            raise ValueError(f"{path}: no rows of measured graphs: {error}") from error
        if found[-1].isna().any(axis=None):
            raise ValueError(f"{path}: a row lacks some of {', '.join(COLUMNS)}")
    return pd.concat(found, ignore_index=True)


def together(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Groups of rows that were measured together, by base and executor, in order of appearance."""
    return [own for _, own in rows.groupby(["base", "executor"], sort=False)]
