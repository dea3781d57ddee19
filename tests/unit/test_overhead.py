"""What calls cost beyond the executor: baselines/overhead.py."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the command line needs typer")

import typer
from typer.testing import CliRunner

from baselines import overhead
from baselines.overhead import Overhead
from tests.e2e.models import RUNTIMES

app = typer.Typer()
app.command()(overhead.main)


@pytest.mark.usefixtures("fresh_dynamo")
def test_every_way_of_calling_is_timed(tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    result = CliRunner().invoke(app, ["--weights", "4,6", "--calls", "30", "--csv", str(file)])
    assert result.exit_code == 0, result.output
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert tuple(rows[0]) == overhead.CSV_COLUMNS
    assert [(row["weights"], row["way"]) for row in rows] == [
        (size, way) for size in ("4", "6") for way in overhead.WAYS
    ]
    for row in rows:
        assert 0 < float(row["call_min_us"]) <= float(row["call_median_us"])
        has_executor = row["way"] not in ("aot_eager", "eager")
        assert bool(row["beyond_min_us"]) == bool(row["beyond_median_us"]) == has_executor
        if has_executor:
            assert 0 < float(row["beyond_min_us"]) < float(row["call_min_us"])


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_model_of_the_suite() -> None:
    result = CliRunner().invoke(app, ["--models", "moe_loop", "--calls", "20"])
    assert result.exit_code == 0, result.output
    assert result.output.count("moe_loop") == len(overhead.MODEL_WAYS)


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("executor", RUNTIMES)
def test_sessions(executor: str, tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    options = ["--models", "ensemble_mlp", "--executors", executor, "--calls", "20", "--csv", str(file)]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["executor"], row["way"]) for row in rows] == [(executor, way) for way in overhead.MODEL_WAYS]
    assert all(0 < float(row["beyond_min_us"]) < float(row["call_min_us"]) for row in rows)


def test_cells() -> None:
    row = Overhead("eager", "linears", 10, "check", [30.0, 50.0], [10.0, 11.0])
    assert row.cells() == ("eager", "linears", 10, "check", "30.0", "40.0", "10.0", "10.5")
    eager = Overhead("eager", "linears", 10, "eager", [30.0], [])
    assert eager.cells() == ("eager", "linears", 10, "eager", "30.0", "30.0", "", "")


@pytest.mark.parametrize("wrong", ["3", "0", "ten", ""])
def test_numbers_that_no_model_has(wrong: str) -> None:
    result = CliRunner().invoke(app, ["--weights", wrong])
    assert result.exit_code == 2
