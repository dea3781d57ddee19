"""What first calls cost, each in a process of its own: baselines/first_call.py."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the command line needs typer")

import typer
from typer.testing import CliRunner

from baselines import first_call
from baselines.first_call import First
from baselines.peers.memory import peak_mb, reset_peak
from baselines.shared import csv_files

app = typer.Typer()
app.command()(first_call.main)


def first(way: str, run: int, wall_s: float, cpu_s: float) -> First:
    return First("m", way, 1, 1, run, wall_s, cpu_s, 100.0, None, "eager" if way == "default" else "")


def test_first_calls_beside_those_of_aot_eager(tmp_path: Path) -> None:
    """With a store that is empty, and with the plan in it."""
    file = tmp_path / "out.csv"
    args = ["--models", "ensemble_mlp", "--ways", "aot_eager,default,stored", "--runs", "1"]
    result = CliRunner().invoke(app, [*args, "--csv", str(file)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    with file.open(newline="") as lines:
        rows = {row["way"]: row for row in csv.DictReader(lines)}
    assert list(rows) == ["aot_eager", "default", "stored"]
    assert tuple(rows["default"]) == first_call.CSV_COLUMNS
    for row in rows.values():
        assert float(row["cpu_s"]) > 0
        assert float(row["wall_s"]) > 0
        assert float(row["peak_mb"]) > 100
    phases = {way: json.loads(row["phases_ms"]) for way, row in rows.items()}
    assert phases["aot_eager"] == {}
    assert {"imports of torch", "imports", "trace", "plan", "lower", "check", "timing"} <= set(
        phases["default"]
    )
    assert set(phases["stored"]) <= set(phases["default"])
    assert "Phases of the report" in result.output


def test_beyond_is_of_the_same_round() -> None:
    found = [
        first("aot_eager", 1, 3.0, 2.0),
        first("default", 1, 5.0, 4.5),
        first("aot_eager", 2, 6.0, 2.5),
        first("default", 2, 9.0, 4.0),
    ]
    assert first_call.beyond(found, "m", "default") == [(2.0, 2.5), (3.0, 1.5)]
    assert first_call.beyond(found, "other", "default") == []


def test_cells() -> None:
    row = First("m", "default", 2, 4, 3, 1.23456, 2.0, 100.04, 99.96, "eager", {"plan": 1.6})
    assert row.cells() == (
        "m",
        "default",
        2,
        4,
        3,
        "1.235",
        "2.000",
        "100.0",
        "100.0",
        "eager",
        '{"plan": 2}',
    )
    assert first("eager", 1, 1.0, 1.0).cells()[8] == ""


def test_a_file_says_what_was_measured(tmp_path: Path) -> None:
    file = tmp_path / "first.csv"
    rows = [
        First("m", "default", 2, 4, 3, 1.5, 2.0, 100.0, 99.5, "eager", {"plan": 2}),
        first("eager", 1, 1, 1),
    ]
    csv_files.write(file, first_call.CSV_COLUMNS, [each.cells() for each in rows])
    assert first_call.read_csv(file) == rows


def test_the_peak_begins_anew() -> None:
    """Where the system lets us: memory that is given back is no part of it any more."""
    if not reset_peak():
        pytest.skip("the system does not let a process reset its peak")
    before = peak_mb()
    block = bytearray(200 << 20)
    block[:: 1 << 12] = b"x" * len(block[:: 1 << 12])
    assert peak_mb() >= before + 200
    del block
    assert reset_peak()
    assert peak_mb() < before + 100


@pytest.mark.parametrize("wrong", [["--ways", "warm"], ["--models", "none"], ["--runs", "0"]])
def test_what_there_is_not(wrong: list[str]) -> None:
    assert CliRunner().invoke(app, wrong).exit_code == 2
