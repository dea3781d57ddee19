"""Agents on held-out graphs: training/compare_held_out.py."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the command line needs typer")

import typer
from typer.testing import CliRunner

from baselines.shared.agent_tables import CSV_COLUMNS
from training.compare_held_out import compare


@pytest.mark.slow
def test_held_out_graphs_are_compared_as_models_are(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(compare)
    file = tmp_path / "held_out.csv"
    arguments = ["--graphs", "2", "--seconds", "0.05", "--seeds", "1", "--best-known-s", "0.2"]
    result = CliRunner().invoke(app, [*arguments, "--csv", str(file)])
    assert result.exit_code == 0, result.output
    assert "after at most 50000 steps" in result.output
    with file.open(newline="") as rows:
        table = list(csv.DictReader(rows))
    assert tuple(table[0]) == CSV_COLUMNS
    assert {row["model"] for row in table} == {"held_out_0", "held_out_1"}
    costs = {row["model"]: float(row["cost_ms"]) for row in table if row["searcher"] == "greedy"}
    assert costs["held_out_0"] != costs["held_out_1"]


def test_no_seconds_are_refused() -> None:
    app = typer.Typer()
    app.command()(compare)
    result = CliRunner().invoke(app, ["--seconds", "soon"])
    assert result.exit_code == 2
    assert "seconds separated by commas" in result.output
