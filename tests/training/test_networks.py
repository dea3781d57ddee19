"""The value of networks: training/scores/networks.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from torchrlopt.agent import catalogue
from torchrlopt.substitutions import load_library
from training import checkpoints
from training.networks.candidate_controller import ControllerConfig, new_controller
from training.scores import networks

APP = typer.Typer()
APP.command()(networks.main)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "networks.safetensors"
    checkpoints.save(
        path, new_controller(load_library(), ControllerConfig(width=16, rounds=2)), load_library(), {}
    )
    return path


@pytest.mark.nightly
def test_files_stand_beside_their_controls(file: Path) -> None:
    given = [str(file), "--graphs", "1", "--steps", "20,40"]
    result = CliRunner(env={"COLUMNS": "250"}).invoke(APP, given)
    assert result.exit_code == 0, result.output
    rows = [line.split("│")[1:-1] for line in result.output.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == [str(file), "random", "none"]
    assert [row[1].strip() == "" for row in rows] == [False, False, True]
    assert max(float(cell) for row in rows for cell in row[2:]) < 100


@pytest.mark.parametrize(
    ("path", "message"), [(str(catalogue.SHIPPED), "rates no"), ("no/such.safetensors", "no/such")]
)
def test_other_files_are_refused(path: str, message: str) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(APP, [path, "--graphs", "1"])
    assert result.exit_code == 2
    assert message in result.output
