"""The command line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from tests.api.command import run
from tests.e2e.models import Branches, build
from tests.onnx.onnx_text import proto_of
from tests.report.page_cases import Page
from torchrlopt.api.cli.models import load_model
from torchrlopt.errors import UnsupportedError


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "in.onnx"
    torch.onnx.export(build(Branches), (torch.randn(5, 16),), str(path), dynamo=True, verbose=False)
    return path


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
        "-o",
        "measure=false",
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["kept"] == "rewritten"
    assert report["searcher"] == "taso"
    assert (tmp_path / "out.onnx").exists()


def test_explain_prints_the_plans_and_writes_the_page_of_one(model_file: Path, tmp_path: Path) -> None:
    html = tmp_path / "plan.html"
    result = run("explain", str(model_file), "-o", "searcher=greedy", "--html", str(html), "--json")
    assert result.returncode == 0, result.stderr
    (graph,) = json.loads(result.stdout)["graphs"]
    assert graph["executors"][0]["executor"] == "eager"
    page = Page(html.read_text(encoding="utf-8"))
    steps = sum(each["count"] for each in graph["executors"][0]["rewrites"])
    assert len(page.data()["steps"]) == steps > 0
    wrong = run("explain", str(model_file), "--html", str(html), "--executor", "eagr")
    assert wrong.returncode == 2
    assert "eager, " in wrong.stderr


@pytest.mark.parametrize(
    ("option", "message"),
    [("searcher=gredy", "did you mean 'greedy'"), ("seed", "name=value"), ("sed=1", "'seed'")],
)
def test_bad_option_is_one_line_and_status_2(
    option: str, message: str, model_file: Path, tmp_path: Path
) -> None:
    result = run("optimise-onnx", str(model_file), str(tmp_path / "out.onnx"), "-o", option)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out.onnx").exists()


def test_profile_fills_the_profile_and_goes_on(model_file: Path) -> None:
    first = run("profile", str(model_file), "--seconds", "0")
    assert first.returncode == 0, first.stderr
    assert "1 graphs timed" in first.stderr
    assert "100% of the price measured" in first.stderr
    again = run("profile", str(model_file), "tests.machine.test_profiling:small", "--seconds", "0")
    assert again.returncode == 0, again.stderr
    assert "0 new prices" in again.stderr.splitlines()[0]
    assert "tests.machine.test_profiling:small: 1 graphs timed" in again.stderr
    assert json.loads(run("device", "--json").stdout)["prices"]["eager"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("profile", "nowhere.onnx"), "no such file"),
        (("profile", "resnet50"), "no model 'resnet50'"),
        (("profile", "torch:nothing_there"), "cannot find torch:nothing_there"),
        (("profile", "tests.machine.test_profiling:small", "--executor", "egaer"), "did you mean 'eager'"),
        (
            ("profile", "tests.machine.test_profiling:small", "--executor", "auto"),
            "a profile is of one executor",
        ),
        (("device", "--device", "toaster"), "no such device"),
    ],
)
def test_bad_arguments_are_refused(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def failing(*arguments: str, status: int = 1) -> str:
    """The one line that a command prints before it ends with this status."""
    done = run(*arguments)
    assert done.returncode == status
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.hides_errors
def test_errors_of_files_are_one_line(
    model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"hello\nyou")
    assert "no ONNX model" in failing("optimise-onnx", str(broken), str(tmp_path / "out"))
    assert "no file" in failing("optimise-onnx", str(model_file), "/dev/null", status=2)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    out = (
        "optimise-onnx",
        str(model_file),
        str(tmp_path / "out"),
        "-o",
        "searcher=none",
        "-o",
        "verify=false",
    )
    assert "No space left" in failing(*out)
    assert list(tmp_path.glob("*out*")) == []


def test_a_file_makes_no_folder_a_place_of_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `module:function` asks for the current folder, and behind all that is installed."""
    (tmp_path / "model.onnx").write_bytes(
        proto_of("g (float[2] x) => (float[2] y) { y = Relu(x) }").SerializeToString()
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = list(sys.path)
    load_model("model.onnx")
    assert sys.path == before
    (tmp_path / "mine.py").write_text("def make():\n    return (len, ())\n")
    load_model("mine:make")
    assert sys.path == [*before, str(tmp_path)]


def test_a_file_that_asks_for_too_much_is_not_run(tmp_path: Path) -> None:
    text = "g (float[1000000,1000000] x) => (float[1000000,1000000] y) { y = Relu(x) }"
    (tmp_path / "model.onnx").write_bytes(proto_of(text).SerializeToString())
    with pytest.raises(UnsupportedError, match="too large for profiling"):
        load_model(str(tmp_path / "model.onnx"))
