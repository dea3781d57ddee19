"""What a section of a report of `training/reproduce.py` holds, whichever experiment it is of."""

from __future__ import annotations

import csv
from pathlib import Path

from training.experiments.reproduction import EXPERIMENTS

PNG = b"\x89PNG"


def check_section(name: str, out: Path, report: str) -> None:
    """It says what it is and how it was made, has a table, and its CSV and pictures are there and sound."""
    sections = [part for part in report.split("\n## ") if part.startswith(f"{name}: ")]
    assert len(sections) == 1, name
    section = sections[0]
    assert section.startswith(f"{name}: {EXPERIMENTS[name].title}\n")
    assert f"Made by `python training/reproduce.py {name} --share " in section
    assert "|---|" in section, f"{name} has no table"
    rows = list(csv.reader((out / f"{name}.csv").open(encoding="utf-8")))
    assert len(rows) > 1, name
    assert {len(row) for row in rows} == {len(rows[0])}, f"rows of {name}.csv are not equally long"
    for picture in [
        part.split(")")[0] for part in section.split("](")[1:] if part.split(")")[0].endswith(".png")
    ]:
        assert (out / picture).read_bytes().startswith(PNG), picture
    assert f"]({name}.png)" in section, f"{name} shows no picture"
