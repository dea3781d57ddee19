"""A process with limits: its answer, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchrlopt.errors import UnsupportedError
from torchrlopt.onnx.limited import Limits, run_limited

MODULE = """
import ctypes, sys, time
def main(data, arguments):
    print("noise")
    kind = arguments[0]
    if kind == "echo":
        return data[::-1]
    if kind == "hang":
        time.sleep(1000)
    if kind == "spin":
        while True: pass
    if kind == "fill":
        return bytes(1 << 33)
    if kind == "crash":
        ctypes.string_at(0)
    if kind == "path":
        return repr(sys.path[0]).encode()
    raise ValueError("no such kind")
"""


def call(folder: Path, kind: str, seconds: float = 60.0) -> bytes:
    (folder / "module.py").write_text(MODULE)
    limits = Limits(seconds, 1 << 28)
    return run_limited(str(folder / "module.py"), (kind,), b"abc", limits, "the task")


def test_the_answer_is_what_main_returns(tmp_path: Path) -> None:
    assert call(tmp_path, "echo") == b"cba"


@pytest.mark.parametrize(
    ("kind", "message"),
    [("fill", "the task failed; got: MemoryError"), ("crash", "SIGSEGV"), ("other", "no such kind")],
)
def test_how_it_ends_is_said(kind: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=message):
        call(tmp_path, kind)


@pytest.mark.parametrize("kind", ["hang", "spin"])
def test_it_is_ended_when_its_time_is_over(kind: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="too long"):
        call(tmp_path, kind, seconds=0.5)


def test_the_folder_one_is_in_holds_no_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "resource.py").write_text("raise ValueError('taken from the current folder')")
    monkeypatch.chdir(tmp_path)
    assert call(tmp_path, "echo") == b"cba"
