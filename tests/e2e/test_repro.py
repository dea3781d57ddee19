"""Reproducing a failure: `report.dump_repro`, `repro_dir`, `TORCHRLOPT_REPRO_DIR`."""

from __future__ import annotations

import ast
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.e2e.models import RUNTIMES, STRICT, Branches, assert_same, build, failing
from torchrlopt import optimise, reports
from torchrlopt.compile import attempt
from torchrlopt.compile.memory import MEMORY
from torchrlopt.errors import LoweringError, UnsupportedError
from torchrlopt.report import Report
from torchrlopt.storage.repro_folder import VARIABLE

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.linspace(-1, 1, 80).reshape(5, 16)


def repeated(folder: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    """`python repro.py` in a process of its own, after some lines of Python."""
    code = f"import runpy, sys\n{before}\nrunpy.run_path(sys.argv[1], run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-c", code, str(folder / "repro.py")], capture_output=True, text=True, check=False
    )


@pytest.mark.hides_errors
def test_an_injected_failure_in_a_fresh_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "written", failing(KeyError("no such luck")))
    model = build(Branches)
    fast = optimise(model, X, searcher="greedy", budget_steps=50)
    folder = fast.report.dump_repro(tmp_path / "deep" / "repro")
    assert sorted(path.name for path in folder.iterdir()) == [
        "about.json", "graph.txt", "plan.json", "repro.py", "traceback.txt",
    ]  # fmt: skip
    about = json.loads((folder / "about.json").read_text())
    assert about["failure"] == {"type": "KeyError", "message": "KeyError: 'no such luck'"}
    assert about["options"]["searcher"] == "greedy"
    assert {"python", "torch", "torchrlopt"} <= about["versions"].keys()
    (entry,) = [each for each in about["inputs"] if each["role"] == "input"]
    assert "(5, 16), (16, 1), torch.float32" in entry["value"]
    assert "no such luck" in (folder / "traceback.txt").read_text()
    assert "aten" in (folder / "graph.txt").read_text()
    breaks_and_mends = (
        "import traceback\n"
        "from torchrlopt.compile import attempt\n"
        "plain = attempt.written\n"
        "def fail(*_):\n    raise KeyError('no such luck')\n"
        "attempt.written = fail\n"
        "try:\n    runpy.run_path(sys.argv[1], run_name='__main__')\n"
        "except Exception:\n    traceback.print_exc()\n"
        "attempt.written = plain"
    )
    mended = repeated(folder, breaks_and_mends)
    assert "KeyError: 'no such luck'" in mended.stderr
    assert mended.returncode == 0, mended.stderr
    assert "The failure was not repeated." in mended.stdout
    steps = sum(len(each["steps"]) for each in json.loads((folder / "plan.json").read_text())["graphs"])
    assert f"{steps} steps" in mended.stdout, "the plan is the one that was made"


class NoSuchOperator(nn.Module):
    """ONNX has no Bessel functions."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(16, 16)
        self.register_buffer("index", torch.tensor([3, 1, 2]))
        self.register_buffer("scale", torch.rand(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.special.bessel_j0(self.lin(x) * self.scale)
        return y[:, self.index].reshape(x.shape[0] * 3)


def test_no_number_of_a_weight_is_told(tmp_path: Path) -> None:
    model = build(NoSuchOperator)
    with torch.no_grad():
        model.lin.weight.add_(100)  # seven digits, which stand nowhere by chance as those of 0.0004 do
    for executor in RUNTIMES[:1]:
        folder = optimise(model, X, executor=executor, searcher="none").report.dump_repro(tmp_path)
        told = "".join(path.read_text() for path in folder.iterdir() if path.is_file())
        assert not [each for each in model.lin.weight.flatten().tolist() if f"{each:.4f}" in told]
        ast.parse((folder / "repro.py").read_text())


@pytest.mark.hides_errors
def test_a_call_that_fails_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = optimise(build(Branches), X, **{**STRICT, "on_error": "fallback"})
    (graph,) = MEMORY.compiled.values()
    monkeypatch.setattr(type(graph.lowered), "__call__", failing(RuntimeError("the session is gone")))
    fast(X)
    source = (fast.report.dump_repro(tmp_path) / "repro.py").read_text()
    assert "the session is gone" in source


@pytest.mark.nightly
@pytest.mark.hides_errors
def test_a_folder_for_all_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "written", failing(KeyError("no such luck")))
    for number, place in enumerate(("option", "environment")):
        torch._dynamo.reset()
        monkeypatch.setenv(VARIABLE, str(tmp_path / "environment"))
        given = {"repro_dir": str(tmp_path / place)} if number == 0 else {}
        for _ in range(2):
            optimise(build(Branches), X, searcher="greedy", budget_steps=50, **given)
        (folder,) = (tmp_path / place).iterdir()
        assert (folder / "repro.py").exists(), "the same failure goes to the same folder"
    assert not (tmp_path / "environment").samefile(tmp_path / "option")
    monkeypatch.setattr(attempt, "written", failing(LoweringError("no such luck")))
    with pytest.raises(LoweringError, match="no such luck") as caught:
        optimise(build(Branches), X, searcher="greedy", on_error="raise", repro_dir=str(tmp_path / "raise"))
    assert str(tmp_path / "raise") in "".join(caught.value.__notes__)


@pytest.mark.hides_errors
def test_the_warning_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(attempt, "written", failing(KeyError("no such luck")))
    with torch.no_grad():
        torch.compile(build(Branches), backend="rlopt")(X)
    (warning,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert "report.dump_repro(folder)" in warning
    assert VARIABLE in warning
    assert reports()[-1].dump_repro(tmp_path) == tmp_path


@pytest.mark.hides_errors
def test_a_repro_that_cannot_be_written_hides_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(attempt, "written", failing(KeyError("no such luck")))
    (tmp_path / "file").write_text("no folder")
    model = build(Branches)
    fast = optimise(model, X, repro_dir=str(tmp_path / "file" / "deep"))
    assert "no such luck" in str(fast.report.fallback_reason)
    assert_same(model, fast, X)


def test_without_a_failure_there_is_nothing(tmp_path: Path) -> None:
    for report in (Report(), optimise(build(Branches), X, **STRICT).report):
        with pytest.raises(UnsupportedError, match="no failure"):
            report.dump_repro(tmp_path / "no")
    assert not (tmp_path / "no").exists()
    assert os.environ.get(VARIABLE) is None
