"""What the system says of waiting for processors: torchrlopt/machine/contention.py."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

import pytest

from torchrlopt.machine import contention


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="the kernel does not count waiting"
)


def test_waiting_for_a_processor_that_another_process_uses_is_seen() -> None:
    core = min(os.sched_getaffinity(0))
    everywhere = os.sched_getaffinity(0)
    other = multiprocessing.get_context("fork").Process(target=spin, args=(60.0,))
    other.start()
    try:
        assert other.pid is not None
        os.sched_setaffinity(other.pid, {core})
        os.sched_setaffinity(0, {core})  # of this thread
        waited, start = contention.waited_ns(), time.perf_counter_ns()
        while contention.waited_ns() == waited or time.perf_counter_ns() - start < 200_000_000:
            assert time.perf_counter_ns() - start < 50_000_000_000
        waited, wall = contention.waited_ns() - waited, time.perf_counter_ns() - start
    finally:
        os.sched_setaffinity(0, everywhere)
        other.kill()
        other.join()
    assert not contention.is_calm(waited, wall)


def test_threads_that_end_do_no_harm() -> None:
    before = contention.waited_ns()
    threads = [threading.Thread(target=spin, args=(0.01,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    readings = [contention.waited_ns() for _ in range(50)]
    for thread in threads:
        thread.join()
    assert before > 0
    assert min(readings) > 0


def test_a_sleep_is_no_waiting() -> None:
    assert contention.is_calm(0, 1)
    assert contention.is_calm(25_000, 100_000)
    assert not contention.is_calm(5_000_000, 100_000_000)


def test_a_system_that_does_not_tell_is_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "_TASKS", "/nowhere")
    assert contention.waited_ns() == 0
