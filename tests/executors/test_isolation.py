"""A runtime's first run of anything happens in a separate process: torchrlopt/executors/isolation."""

from __future__ import annotations

import multiprocessing.spawn
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.package.test_processes import ROOT, is_alive
from torchrlopt.errors import UnsupportedError
from torchrlopt.executors.isolation.task import Task, run_task
from torchrlopt.limited import Death

GIB = 1 << 30


@pytest.fixture(scope="session")
def module() -> Path:
    return Path(__file__).with_name("isolated_runtime.py")


def task(what: str, seconds: float = 60.0, memory: int = GIB, **header: Any) -> Task:
    return Task(what, header, {"x": np.ones(8)}, seconds, memory)


def answer(module: Path, what: str, **options: Any) -> dict[str, Any]:
    return run_task(module, task(what, **options))


def until_gone(*pids: int) -> bool:
    deadline = time.monotonic() + 30
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_alive, pids))


def test_arrays_of_all_kinds_arrive(module: Path) -> None:
    arrays = {
        "empty": np.empty((0, 3), np.float32),
        "scalar": np.array(7, np.int64),
        "bool": np.array([True, False, True]),
        "half": np.ones((3, 5), np.float16),
        "large": np.ones((1000, 1001)),
        "unaligned": np.ones(13, np.int8),
        "": np.array([2.0]),
    }
    found = run_task(module, Task("echo", {"text": "ä", "list": [1, None]}, arrays, 60.0, GIB))
    assert found["header"] == {"text": "ä", "list": [1, None]}
    assert found["arrays"].keys() == arrays.keys()
    for name, array in arrays.items():
        dtype, shape, total, offset = found["arrays"][name]
        assert (dtype, tuple(shape), total) == (str(array.dtype), array.shape, array.astype("f8").sum()), name
        assert offset == 0 or 0 in shape, name
    assert arrays["large"].all()  # what it has written to is a copy


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("crash", "ended with SIGSEGV"),
        ("abort", "ended with SIGABRT"),
        ("fill_in_c", "ended with SIGABRT"),
        ("leave", "without an answer"),
        ("half", "ended with SIGABRT"),
        ("killed", "ended with SIGKILL"),
    ],
)
def test_what_dies_is_told(what: str, message: str, module: Path) -> None:
    with pytest.raises(Death, match=message) as caught:
        answer(module, what)
    assert caught.value.is_lasting == (what != "killed")


def test_the_last_words_are_told(module: Path) -> None:
    with pytest.raises(Death) as caught:
        answer(module, "abort")
    assert caught.value.detail == "terminate called after throwing an instance of 'what'"


def test_what_hangs_is_ended(module: Path) -> None:
    with pytest.raises(Death, match=r"not done after 0\.3 s") as caught:
        answer(module, "hang", seconds=0.3)
    assert caught.value.is_lasting


@pytest.mark.parametrize(("size", "is_given"), [(20 << 30, False), (200 << 20, True)])
def test_memory_has_a_limit(size: int, is_given: bool, module: Path) -> None:
    found = answer(module, "fill", bytes=size)
    assert ("error" not in found) == is_given
    assert is_given or "memory" in found["error"].lower()


def test_errors_are_answers(module: Path) -> None:
    assert answer(module, "refuse") == {"error": "RuntimeError: no such operator"}


def test_it_loads_what_it_needs_and_nothing_of_the_program(module: Path, tmp_path: Path) -> None:
    found = answer(module, "modules")
    assert not {"torch", "torchrlopt", "onnx", __name__} & set(found["names"])
    assert Path(found["main"]).parts[-2:] == ("limited", "child.py")
    assert str(Path(found["main"]).parent) not in found["path"]


def test_it_inherits_no_files(module: Path, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        found = answer(module, "handles")["open"]
    assert not any("secret" in name for name in found.values())


def test_ctrl_c_ends_the_task(module: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    note = tmp_path / "note"
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # shells have jobs behind them ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def interrupt() -> None:
        while not note.exists() or not note.read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        answer(module, "hang", note=str(note))
    assert until_gone(int(note.read_text()))


def test_a_program_with_python_in_it_is_told_what_to_do(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(UnsupportedError, match=r"with Python in it.*set_executable"):
        answer(module, "pids")
    monkeypatch.delattr(sys, "frozen")
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", None)
    with pytest.raises(UnsupportedError, match="with Python in it"):
        answer(module, "pids")
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", b"/bin/true")
    with pytest.raises(Death, match="without an answer"):
        answer(module, "pids")
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", b"/nowhere/python")
    with pytest.raises(UnsupportedError, match="No such file"):
        answer(module, "pids")


def test_a_program_may_have_many_files_open(module: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 2048:
        pytest.skip("the system allows no more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert answer(module, "echo")["header"] == {}
    finally:
        for each in files:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


ALONE = """
import os, sys
from pathlib import Path
for stream in range(3):
    os.close(stream)
import numpy as np
from torchrlopt.executors.isolation.task import Task, run_task
found = run_task(Path(sys.argv[1]), Task("folder", {}, {"x": np.ones(8)}, 60.0, 1 << 30))
Path(sys.argv[2]).write_text(found["folder"])
"""


def test_a_program_may_have_closed_its_streams(module: Path, tmp_path: Path) -> None:
    """And paths mean the same there: runtimes take some in their settings."""
    out = tmp_path / "out"
    command = [sys.executable, "-c", ALONE, str(module), str(out)]
    subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert out.read_text() == str(tmp_path)
