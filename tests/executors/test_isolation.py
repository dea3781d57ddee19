"""A runtime's first run of anything happens in a separate process: torchrlopt/executors/isolation."""

from __future__ import annotations

import multiprocessing.spawn
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import forks
from tests.package.test_processes import ROOT, is_alive
from torchrlopt.errors import UnsupportedError
from torchrlopt.executors.isolation import isolated_process
from torchrlopt.executors.isolation.isolated_process import Death, IsolatedProcess, Task

GIB = 1 << 30


@pytest.fixture(scope="session")
def module() -> Path:
    return Path(__file__).with_name("isolated_runtime.py")


@pytest.fixture(scope="session")
def helper(module: Path) -> IsolatedProcess:
    return IsolatedProcess(module)


def task(what: str, seconds: float = 60.0, memory: int = GIB, **header: Any) -> Task:
    return Task(what, header, {"x": np.ones(8)}, seconds, memory)


def answer(helper: IsolatedProcess, what: str, **options: Any) -> dict[str, Any]:
    return helper.do(task(what, **options))


def until_gone(*pids: int) -> bool:
    deadline = time.monotonic() + 30
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_alive, pids))


def test_arrays_of_all_kinds_arrive(helper: IsolatedProcess) -> None:
    arrays = {
        "empty": np.empty((0, 3), np.float32),
        "scalar": np.array(7, np.int64),
        "bool": np.array([True, False, True]),
        "half": np.ones((3, 5), np.float16),
        "large": np.ones((1000, 1001)),
        "unaligned": np.ones(13, np.int8),
        "": np.array([2.0]),
    }
    found = helper.do(Task("echo", {"text": "ä", "list": [1, None]}, arrays, 60.0, GIB))
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
        ("leave_with", "ended with status 1"),
        ("half", "ended with SIGABRT"),
        ("half_and_leave", "without an answer"),
        ("killed", "ended with SIGKILL"),
    ],
)
def test_what_dies_is_told(what: str, message: str, helper: IsolatedProcess) -> None:
    before = answer(helper, "pids")
    with pytest.raises(Death, match=message) as caught:
        answer(helper, what)
    assert caught.value.is_lasting == (what != "killed")
    after = answer(helper, "pids")
    assert after["helper"] == before["helper"]
    assert after["worker"] != before["worker"]


def test_the_last_words_are_told(helper: IsolatedProcess) -> None:
    with pytest.raises(Death) as caught:
        answer(helper, "abort")
    assert caught.value.detail == "terminate called after throwing an instance of 'what'"
    with pytest.raises(Death) as caught:
        answer(helper, "crash")
    assert caught.value.detail == ""  # those of another task are not


@pytest.mark.parametrize("what", ["hang", "hang_in_c"])
def test_what_hangs_is_ended(what: str, helper: IsolatedProcess, tmp_path: Path) -> None:
    pids = answer(helper, "pids")
    with pytest.raises(Death, match="not done after 0 s") as caught:
        answer(helper, what, seconds=0.3)
    assert caught.value.is_lasting
    assert until_gone(pids["helper"])
    assert answer(helper, "pids")["helper"] != pids["helper"]


@pytest.mark.parametrize(("size", "is_given"), [(20 << 30, False), (200 << 20, True)])
def test_memory_has_a_limit(size: int, is_given: bool, helper: IsolatedProcess) -> None:
    found = answer(helper, "fill", bytes=size)
    assert ("error" not in found) == is_given
    assert is_given or "memory" in found["error"].lower()


def test_errors_are_answers(helper: IsolatedProcess) -> None:
    assert answer(helper, "refuse") == {"error": "RuntimeError: no such operator"}


def test_noise_goes_nowhere(helper: IsolatedProcess, capfd: pytest.CaptureFixture[str]) -> None:
    assert answer(helper, "noise") == {"done": True}
    assert capfd.readouterr() == ("", "")


def test_a_helper_that_is_gone_is_begun_again(helper: IsolatedProcess) -> None:
    pid = answer(helper, "pids")["helper"]
    os.kill(pid, signal.SIGKILL)
    assert until_gone(pid)
    assert answer(helper, "pids")["helper"] != pid
    with pytest.raises(Death, match="from outside") as caught:
        answer(helper, "kill_helper")
    assert not caught.value.is_lasting
    assert answer(helper, "pids")


def test_it_loads_what_it_needs_and_nothing_of_the_program(helper: IsolatedProcess, tmp_path: Path) -> None:
    found = answer(helper, "modules")
    assert not {"torch", "torchrlopt", "onnx", __name__} & set(found["names"])
    assert Path(found["main"]).name == "child.py"
    assert str(Path(found["main"]).parent) not in found["path"]


def test_it_inherits_no_files(module: Path, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        found = answer(IsolatedProcess(module), "handles")["open"]
    assert not any("secret" in name for name in found.values())
    assert found["0"] == found["1"] == "/dev/null"


def test_ctrl_c_ends_the_task(
    helper: IsolatedProcess, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
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
        answer(helper, "hang", note=str(note))
    assert until_gone(*map(int, note.read_text().split()))
    assert answer(helper, "pids")


SCRIPT = """
    import sys
    from pathlib import Path
    from torchrlopt.executors.isolation.isolated_process import IsolatedProcess, Task
    print("the user's script runs", flush=True)
    IsolatedProcess(Path(sys.argv[1])).do(Task("hang", {"note": sys.argv[2]}, {}, 600.0, 1 << 30))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_program(how: signal.Signals, module: Path, tmp_path: Path) -> None:
    script, note = tmp_path / "script.py", tmp_path / "note"
    script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    program = subprocess.Popen(
        [sys.executable, str(script), str(module), str(note)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    while not note.exists() or not note.read_text():
        assert program.poll() is None
        time.sleep(0.01)
    program.send_signal(how)
    said, _ = program.communicate()
    assert said.splitlines() == ["the user's script runs"]  # once: it is not imported anywhere else
    assert until_gone(*map(int, note.read_text().split()))


def test_a_fork_has_one_of_its_own(helper: IsolatedProcess, tmp_path: Path) -> None:
    mine = answer(helper, "pids")["helper"]
    note = tmp_path / "note"

    def work() -> None:
        note.write_text(str(answer(helper, "pids")["helper"]))

    forks.run(work, work)
    assert int(note.read_text()) != mine
    assert answer(helper, "pids")["helper"] == mine
    assert until_gone(int(note.read_text()))


def test_a_fork_in_the_middle_of_a_task_has_one_of_its_own(helper: IsolatedProcess, tmp_path: Path) -> None:
    note = tmp_path / "note"
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(answer, helper, "hang", note=str(note))
        while not note.exists() or not note.read_text():
            time.sleep(0.01)
        forks.run(lambda: answer(helper, "pids"))
        os.kill(int(note.read_text().split()[1]), signal.SIGTERM)
        with pytest.raises(Death, match="SIGTERM"):
            begun.result()


def test_threads_take_turns(helper: IsolatedProcess) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda at: answer(helper, "echo", at=at)["header"]["at"], range(12)))
    assert found == list(range(12))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise OSError('lib.so: cannot open')", "got: OSError: lib.so: cannot open"),
        ("import os; os.write(2, b'bad instruction'); os.abort()", "got: bad instruction"),
        ("import os; os._exit(0)", "before it was ready"),
        ("import time; time.sleep(1000)", "not ready after 1 s"),
    ],
)
def test_a_process_that_does_not_come_up(
    body: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in body:
        monkeypatch.setattr(isolated_process, "_START_S", 1.0)
    path = tmp_path / "damaged.py"
    path.write_text(body, encoding="utf-8")
    helper = IsolatedProcess(path)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=message):
            answer(helper, "pids")


def test_a_program_with_python_in_it_is_told_what_to_do(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(UnsupportedError, match=r"with Python in it.*set_executable"):
        answer(IsolatedProcess(module), "pids")
    monkeypatch.delattr(sys, "frozen")
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", None)
    with pytest.raises(UnsupportedError, match="with Python in it"):
        answer(IsolatedProcess(module), "pids")
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", b"/bin/true")
    with pytest.raises(UnsupportedError, match="before it was ready"):
        answer(IsolatedProcess(module), "pids")
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", b"/nowhere/python")
    with pytest.raises(UnsupportedError, match="No such file"):
        answer(IsolatedProcess(module), "pids")


def test_it_begins_while_another_thread_of_it_imports(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO starts a thread when it is imported, which a `sitecustomize` may have it be."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib._bootstrap, threading, time\n"
        "lock = importlib._bootstrap._get_module_lock('multiprocessing.spawn')\n"
        "is_held = threading.Event()\n"
        "def hold():\n"
        "    lock.acquire()\n"
        "    is_held.set()\n"
        "    time.sleep(1)\n"
        "    lock.release()\n"
        "threading.Thread(target=hold).start()\n"
        "is_held.wait()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    helper = IsolatedProcess(module)
    monkeypatch.setattr(isolated_process, "_START_S", 10.0)
    assert answer(helper, "echo")["header"] == {}
    helper.end()


def test_a_program_may_have_many_files_open(module: Path) -> None:
    helper = IsolatedProcess(module)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 2048:
        pytest.skip("the system allows no more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert answer(helper, "echo")["header"] == {}
    finally:
        helper.end()
        for each in files:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


ALONE = """
import os, sys
from pathlib import Path
for stream in range(3):
    os.close(stream)
import numpy as np
from torchrlopt.executors.isolation.isolated_process import IsolatedProcess, Task
found = IsolatedProcess(Path(sys.argv[1])).do(Task("folder", {}, {"x": np.ones(8)}, 60.0, 1 << 30))
Path(sys.argv[2]).write_text(found["folder"])
"""


def test_a_program_may_have_closed_its_streams(module: Path, tmp_path: Path) -> None:
    """And paths mean the same there: runtimes take some in their settings."""
    out = tmp_path / "out"
    command = [sys.executable, "-c", ALONE, str(module), str(out)]
    subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert out.read_text() == str(tmp_path)
