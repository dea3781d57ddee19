"""What measuring plans is worth: baselines/measured_plans.py."""

from __future__ import annotations

import csv
from pathlib import Path

from typer.testing import CliRunner

from baselines import measured_plans
from baselines.measured_plans import Outcome, render

app = measured_plans.typer.Typer()
app.command()(measured_plans.main)


def outcome(model: str, gain: float, chosen: str = "without x") -> Outcome:
    return Outcome(model, "eager", 10.0, 10.0 * (1 - gain), gain, 0.01, True, 3, chosen, 1.0)


def test_the_mean_counts_models_that_keep_their_plan() -> None:
    table = render([outcome("a", 0.19), outcome("b", 0.0, "")])
    cells = [list(column.cells) for column in table.columns]
    assert cells[0] == ["a", "b", "mean"]
    assert cells[4][:2] == ["19.0%", "0"]
    assert cells[4][2].startswith("10.0% (")  # 1 - 0.81 ** 0.5
    assert cells[7][1] == "the searched one"


def test_the_command_measures(tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    given = ["--models", "ensemble_mlp", "--executors", "eager", "--plans", "2", "--seconds", "0.1"]
    result = CliRunner().invoke(app, [*given, "--csv", str(file)])
    assert result.exit_code == 0, result.output
    with file.open(newline="") as lines:
        (row,) = csv.DictReader(lines)
    assert tuple(row) == measured_plans.CSV_COLUMNS
    assert int(row["plans"]) <= 1
    assert (row["chosen"] == "") == (float(row["searched_ms"]) == 0)
