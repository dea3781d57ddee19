"""What a custom operator costs a model: baselines/regions.py."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the command line needs typer")

import typer
from typer.testing import CliRunner

from baselines import regions
from baselines.regions import Kept, fastest

app = typer.Typer()
app.command()(regions.main)


def test_the_time_that_is_saved_with_the_operator_over_that_without() -> None:
    found = Kept("model", "onnxruntime", 10.0, 6.0, 11.0, 8.0, 3)
    assert found.share == 0.75
    assert found.cells() == ("model", "onnxruntime", "10.000", "6.000", "11.000", "8.000", "0.750", 3)


def test_the_fastest_way_to_cover_all_blocks() -> None:
    times = {(0, 1, "a"): 1.0, (1, 2, "a"): 5.0, (0, 2, "a"): 5.5, (1, 2, "b"): 2.0, (0, 2, "b"): 4.0}
    assert fastest(times, 2) == [(0, 1, "a"), (1, 2, "b")]
    assert fastest({**times, (0, 2, "b"): 2.5}, 2) == [(0, 2, "b")]


@pytest.mark.usefixtures("fresh_dynamo")
def test_the_command_measures(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    file = tmp_path / "out.csv"
    given = ["kept", "--models", "squeezenet1_1", "--executors", "onnxruntime", "--calls", "1"]
    result = CliRunner().invoke(app, [*given, "--csv", str(file)])
    assert result.exit_code == 0, result.output
    with file.open(newline="") as lines:
        (row,) = csv.DictReader(lines)
    assert tuple(row) == regions.CSV_COLUMNS
    assert row["parts"] == "3"


def test_questions_that_there_are_not() -> None:
    assert CliRunner().invoke(app, ["neither"]).exit_code == 2
