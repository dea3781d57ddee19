"""World models against the baseline that nothing changes: training/scores/worlds.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from training.config import Config
from training.device.prices import typical_prices
from training.dream_trainer import DreamTrainer
from training.scores import worlds


@pytest.mark.nightly
def test_the_models_of_runs_are_scored(tmp_path: Path) -> None:
    for row in ("wm", "wm_plus"):
        config = Config.of_row(row, groups=1, max_steps=3)
        DreamTrainer(config, tmp_path / row, prices=typical_prices()).save()
    app = worlds.typer.Typer()
    app.command()(worlds.main)
    told = CliRunner().invoke(app, [str(tmp_path / "wm"), str(tmp_path / "wm_plus"), "--graphs", "1"])
    assert told.exit_code == 0, told.output
    rows = [line.split(" | ") for line in told.output.splitlines() if line.startswith("| wm")]
    assert [row[0].strip("| ") for row in rows] == ["wm", "wm", "wm_plus", "wm_plus"]
    assert all(0 <= float(re.sub(r"[ |]", "", f1)) <= 1 for row in rows for f1 in row[-2:])
