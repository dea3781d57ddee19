"""The command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchrlopt
from tests.e2e.models import Branches, build

MAIN = "from torchrlopt.api.cli import main; main()"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "in.onnx"
    torch.onnx.export(build(Branches), (torch.randn(5, 16),), str(path), dynamo=True, verbose=False)
    return path


def test_version() -> None:
    assert run("version").stdout.strip() == torchrlopt.__version__


def test_optimise_onnx_prints_the_report(model_file: Path, tmp_path: Path) -> None:
    result = run(
        "optimise-onnx",
        str(model_file),
        str(tmp_path / "out.onnx"),
        "--json",
        "-o",
        "alpha=1.1",
        "-o",
        "searcher=taso",
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["kept"] == "rewritten"
    assert report["searcher"] == "taso"
    assert (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [("searcher=gredy", "did you mean 'greedy'"), ("seed", "name=value"), ("sed=1", "'seed'")],
)
def test_bad_option_is_one_line_and_status_1(
    option: str, message: str, model_file: Path, tmp_path: Path
) -> None:
    result = run("optimise-onnx", str(model_file), str(tmp_path / "out.onnx"), "-o", option)
    assert result.returncode == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out.onnx").exists()


def test_profile_fills_the_profile_and_goes_on(model_file: Path) -> None:
    first = run("profile", str(model_file), "--seconds", "0")
    assert first.returncode == 0, first.stderr
    assert "1 graphs timed" in first.stderr
    assert "100% of the price measured" in first.stderr
    again = run("profile", str(model_file), "tests.unit.test_profiling:small", "--seconds", "0")
    assert again.returncode == 0, again.stderr
    assert "0 new prices" in again.stderr.splitlines()[0]
    assert "tests.unit.test_profiling:small: 1 graphs timed" in again.stderr
    assert json.loads(run("device", "--json").stdout)["prices"]["eager"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("profile", "nowhere.onnx"), "no such file"),
        (("profile", "resnet50"), "no model 'resnet50'"),
        (("profile", "torch:nothing_there"), "cannot find torch:nothing_there"),
        (("profile", "tests.unit.test_profiling:small", "--executor", "egaer"), "did you mean 'eager'"),
        (
            ("profile", "tests.unit.test_profiling:small", "--executor", "auto"),
            "a profile is of one executor",
        ),
        (("device", "--device", "toaster"), "no such device"),
    ],
)
def test_bad_arguments_are_refused(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr
