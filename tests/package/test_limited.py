"""A process with resource limits: its answer, and how it ends."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.package.test_processes import ROOT
from torchrlopt.errors import UnsupportedError
from torchrlopt.limited import Limits, run_limited

MODULE = """
import ctypes.util, os, sys, time
assert ctypes.util.find_library("absent") is None  # asks gcc if there is one, as imports of torch do
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
    if kind == "programs":
        return repr(os.get_exec_path()).encode()
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
    [("fill", "the task failed; got: .*MemoryError"), ("crash", "SIGSEGV"), ("other", "no such kind")],
)
def test_how_it_ends_is_said(kind: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=message):
        call(tmp_path, kind)


@pytest.mark.parametrize("kind", ["hang", "spin"])
def test_it_is_ended_when_its_time_is_over(kind: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="not done after"):
        call(tmp_path, kind, seconds=0.5)


def test_the_folder_one_is_in_holds_no_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "resource.py").write_text("raise ValueError('taken from the current folder')")
    monkeypatch.chdir(tmp_path)
    assert call(tmp_path, "echo") == b"cba"


def test_no_folder_holds_programs(tmp_path: Path) -> None:
    """An empty PATH stands for the current folder, whose `ld` would run where the kernel confines nothing."""
    assert call(tmp_path, "programs") == repr([os.devnull]).encode()


def test_the_module_cannot_write_start_or_connect(tmp_path: Path) -> None:
    """What each call says is in `test_sandbox.py`; here, that the rights are gone before `main` runs."""
    (tmp_path / "module.py").write_text(
        "import os, socket, subprocess\n"
        "def main(data, arguments):\n"
        "    refused = []\n"
        "    calls = lambda: open(arguments[0], 'w'), lambda: subprocess.run(['true']), socket.socket\n"
        "    for what in calls:\n"
        "        try:\n"
        "            what()\n"
        "        except OSError:\n"
        "            refused.append(1)\n"
        "    return bytes([len(refused)]) + open(__file__, 'rb').read(6)\n"
    )
    limits = Limits(60.0, 1 << 28)
    answer = run_limited(str(tmp_path / "module.py"), (str(tmp_path / "new"),), b"", limits, "the task")
    assert answer == b"\3import"
    assert not (tmp_path / "new").exists()


def test_the_module_knows_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    (tmp_path / "module.py").write_text(
        "import os\ndef main(data, arguments):\n    return repr(sorted(os.environ)).encode()\n"
    )
    answer = run_limited(str(tmp_path / "module.py"), (), b"", Limits(60.0, 1 << 28), "the task")
    assert b"PYTHONPATH" in answer
    assert b"SECRET" not in answer


SLEEPER = """
import sys
from pathlib import Path
from torchrlopt.limited import Limits, run_limited
run_limited(sys.argv[1], (), b"", Limits(600.0, 1 << 28), "the task")
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_the_process_ends_with_the_one_that_asked(number: signal.Signals, tmp_path: Path) -> None:
    """Also while it hangs in native code that keeps Python from running anything else."""
    module, held = tmp_path / "module.py", tmp_path / "held"
    os.mkfifo(held)
    module.write_text(
        "import ctypes, os\n"
        "def main(data, arguments):\n"
        f"    pipe = os.open({str(held)!r}, os.O_RDONLY)\n"
        "    os.read(pipe, 1)\n"
        "    ctypes.PyDLL(None).sleep(600)\n"
    )
    asking = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(module)], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    pipe = opened_for(held, asking)
    os.write(pipe, b"x")
    asking.send_signal(number)
    asking.wait()
    watch = select.poll()
    watch.register(pipe, 0)
    assert watch.poll(60_000) == [(pipe, select.POLLERR)], "the child still holds its end of the pipe"
    os.close(pipe)


def opened_for(path: Path, process: subprocess.Popen[bytes]) -> int:
    """The end of a named pipe for writing, once somebody has opened the other one."""
    while process.poll() is None:
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # ENXIO: nobody reads yet
            time.sleep(0.05)
    raise AssertionError("the process ended before its child had begun")


def test_what_it_writes_without_end_is_not_held(tmp_path: Path) -> None:
    """Memory of the program, which has no limit of its own."""
    (tmp_path / "module.py").write_text(
        "import os\n"
        "def main(data, arguments):\n"
        "    for _ in range(1 << 12):\n"
        "        os.write(2, b'x' * (1 << 16))\n"
        "    return b'x' * int(arguments[0])\n"
    )
    limits = Limits(60.0, 1 << 28, answer_bytes=1 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = run_limited(str(tmp_path / "module.py"), ("1000",), b"", limits, "the task")
    with pytest.raises(UnsupportedError, match="answered more than"):
        run_limited(str(tmp_path / "module.py"), (str(1 << 27),), b"", limits, "the task")
    assert len(answer) == 1000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kilobytes, of 268 MB


def test_a_crash_is_seen_where_children_are_ignored(tmp_path: Path) -> None:
    """There is no exit status then."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert call(tmp_path, "echo") == b"cba"
        with pytest.raises(UnsupportedError, match="the task failed"):
            call(tmp_path, "crash")
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_without_memory_it_is_confined_all_the_same(tmp_path: Path) -> None:
    target = tmp_path / "written"
    (tmp_path / "module.py").write_text(
        f"def main(data, arguments):\n    open({str(target)!r}, 'w')\n    return b''\n"
    )
    with pytest.raises(UnsupportedError):
        run_limited(str(tmp_path / "module.py"), (), b"", Limits(60.0, 0), "the task")
    assert not target.exists()
