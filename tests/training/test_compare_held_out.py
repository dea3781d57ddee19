"""Agents on held-out graphs: training/compare_held_out.py."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the command line needs typer")

import typer
from typer.testing import CliRunner

from baselines.shared.tables import of, read
from training.compare_held_out import compare


@pytest.mark.nightly
def test_held_out_graphs_are_compared_as_models_are(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(compare)
    file = tmp_path / "held_out.csv"
    arguments = ["--graphs", "2", "--seconds", "0.05", "--seeds", "1", "--best-known-s", "0.2"]
    result = CliRunner().invoke(app, [*arguments, "--csv", str(file)])
    assert result.exit_code == 0, result.output
    assert "by family" in result.output
    costs = of(read(file), metric="cost")
    assert set(costs.model) == {"held_out_0", "held_out_1"}
    greedy = of(costs, peer="greedy").groupby("model").value.min()
    assert greedy["held_out_0"] != greedy["held_out_1"]


def test_no_seconds_are_refused() -> None:
    app = typer.Typer()
    app.command()(compare)
    result = CliRunner().invoke(app, ["--seconds", "soon"])
    assert result.exit_code == 2
    assert "seconds separated by commas" in result.output
