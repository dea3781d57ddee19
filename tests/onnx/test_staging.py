"""Temporary files of killed processes are cleaned up by the next one, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.onnx.test_saving import _names, _outside
from tests.package.test_processes import ROOT
from torchrlopt.onnx import safety
from torchrlopt.onnx.saving import Staged

WRITER = """
import sys, time
from pathlib import Path
from torchrlopt.onnx import safety
from torchrlopt.onnx.saving import Staged
def work():
    source, target = map(Path, sys.argv[1:])
    with Staged(target) as staged:
        staged.write(safety.parse(source), source.parent)
        print("written", flush=True)
        time.sleep(600)
"""
PLAIN = f"{WRITER}\nwork()"
# `nohup` has SIGHUP ignored, which commands respect.
HEARING = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)"
COMMAND = f"{WRITER}\n{HEARING}\nfrom torchrlopt.api.cli import app\napp.app = work\napp.main()"


def writer(code: str, source: Path, target: Path) -> subprocess.Popen[str]:
    """A process that has written a model and its data, and has not moved them yet."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(source), str(target)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    return process


def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    source, folder = _outside(tmp_path / "a"), tmp_path / "b"
    folder.mkdir()
    process = writer(PLAIN, source, folder / "out.onnx")
    process.kill()
    process.wait()
    assert len(_names(folder)) == 1
    with Staged(folder / "out.onnx") as staged:
        staged.write(safety.parse(source), source.parent)
        staged.commit()
    assert _names(folder) == {"out.onnx", "out.onnx.data"}


def test_data_that_appears_meanwhile_stays(tmp_path: Path) -> None:
    source, folder = _outside(tmp_path / "a"), tmp_path / "b"
    folder.mkdir()
    with Staged(folder / "out.onnx") as staged:
        staged.write(safety.parse(source), source.parent)
        (folder / "out.onnx.data").write_text("content")
        staged.commit()
    assert (folder / "out.onnx.data").read_text() == "content"
    assert {path.name for path in folder.iterdir()} == {"out.onnx", "out.onnx.data", "out.onnx.1.data"}


def test_what_a_process_works_on_stays(tmp_path: Path) -> None:
    source, folder = _outside(tmp_path / "a"), tmp_path / "b"
    folder.mkdir()
    process = writer(PLAIN, source, folder / "out.onnx")
    before = _names(folder)
    try:
        with Staged(folder / "other.onnx"):
            pass
        assert _names(folder) == before
    finally:
        process.kill()
        process.wait()


def test_what_others_made_stays(tmp_path: Path) -> None:
    """Names that only look alike, and links: archives may bring all of it."""
    left = tmp_path / ".torchrlopt.abcdefgh"
    left.mkdir()
    (left / "empty.data").touch()
    (tmp_path / "empty.data").touch()
    (tmp_path / "out.onnx.data").write_text("content")
    (tmp_path / "other.data").symlink_to(tmp_path / "out.onnx.data")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    (tmp_path / ".torchrlopt.linkedto").symlink_to(elsewhere)
    (tmp_path / ".torchrlopt.of.mine").mkdir()
    with Staged(tmp_path / "other.onnx"):
        pass
    kept = {
        "empty.data",
        "out.onnx.data",
        "other.data",
        "elsewhere",
        ".torchrlopt.linkedto",
        ".torchrlopt.of.mine",
    }
    assert _names(tmp_path) == kept
    assert _names(elsewhere) == {"file"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_command_that_is_ended_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    source, folder = _outside(tmp_path / "a"), tmp_path / "b"
    folder.mkdir()
    process = writer(COMMAND, source, folder / "out.onnx")
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert _names(folder) == set()
