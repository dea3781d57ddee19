"""How fast the environment is: baselines/env_speed.py."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the command line needs typer")
pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")

import typer
from typer.testing import CliRunner

from baselines import env_speed
from baselines.graphs import chain


@pytest.mark.slow
def test_steps_and_the_first_match_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_speed, "CHAINS", (100, 200))
    app = typer.Typer()
    app.command()(env_speed.main)
    file = tmp_path / "env.csv"
    result = CliRunner().invoke(app, ["--models", "ensemble_mlp", "--csv", str(file)])
    assert result.exit_code == 0, result.output
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert tuple(rows[0]) == env_speed.CSV_COLUMNS
    assert [(row["model"], row["metric"]) for row in rows] == [
        (model, metric)
        for model in ("ensemble_mlp", "chain_100", "chain_200")
        for metric in ("first_match", "step")
    ]
    assert all(float(row["us"]) > 0 for row in rows)  # nan, where no step was taken, is not


def test_a_chain_is_as_long_as_asked() -> None:
    graph = chain(37)
    graph.check()
    assert graph.num_operators == 37
