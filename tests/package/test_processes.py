"""Helper processes end with the process that they work for: torchrlopt/processes.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchrlopt.processes import plain_environment

ROOT = Path(__file__).resolve().parents[2]
LEARNER = """
import time
from tests.training.collector_cases import Numbers
from training.collectors.collector import Collector
if __name__ == "__main__":
    collector = Collector(Numbers(), 2)
    collector.collect(bytes(range(40)), [1, 2, 3])
    print(*[pid for pool in collector._processes for pid in pool._processes], flush=True)
    time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads processes from /proc")
def test_workers_end_when_the_learner_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "learner.py"
    script.write_text(LEARNER, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    learner = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )
    assert learner.stdout is not None
    pids = [int(word) for word in learner.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(is_alive, pids))
    os.kill(learner.pid, signal.SIGKILL)
    learner.wait()
    deadline = time.monotonic() + 60
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_alive, pids))


CHILD = """
import os, subprocess, sys, time
from torchrlopt import processes
if sys.argv[1] == "parent":
    child = subprocess.Popen([sys.executable, __file__, "child", str(os.getpid())])
    time.sleep(600)
processes.killed_with_parent(int(sys.argv[2]))
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "child.py"
    path.write_text(CHILD, encoding="utf-8")
    return path


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_child_is_killed_with_its_parent(number: signal.Signals, script: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, str(script), "parent"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_alive(child)
    parent.send_signal(number)
    parent.wait()
    deadline = time.monotonic() + 60
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(child)


def test_a_child_whose_parent_is_gone_before_ends_at_once(script: Path) -> None:
    not_the_parent = "1" if os.getpid() != 1 else "2"
    done = subprocess.run(
        [sys.executable, str(script), "child", not_the_parent],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL


def test_a_process_that_sleeps_is_ended_by_the_clock() -> None:
    code = "import time; from torchrlopt import processes; processes.killed_after(0.2); time.sleep(600)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, timeout=120
    )
    assert done.returncode == -signal.SIGALRM


def test_secrets_stay_in_the_program() -> None:
    given = {
        "AWS_SECRET_ACCESS_KEY": "x",
        "HOME": "/root",
        "PATH": "/bin",
        "OMP_NUM_THREADS": "2",
        "LC_ALL": "C",
    }
    kept = plain_environment(given)
    assert set(kept) == {
        "PATH",
        "OMP_NUM_THREADS",
        "LC_ALL",
        "PYTHONDONTWRITEBYTECODE",
        "CUDA_VISIBLE_DEVICES",
    }
