"""Processes that work for another one end with it: torchrlopt/processes.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEARNER = """
import time
from tests.unit.collector_cases import Numbers
from training.collectors.collector import Collector
if __name__ == "__main__":
    collector = Collector(Numbers(), "processes", 2)
    collector.collect(bytes(range(40)), [1, 2, 3])
    print(*[pid for seat in collector._seats for pid in seat._executor._processes], flush=True)
    time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.slow
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
