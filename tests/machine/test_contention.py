"""The system's counters of waiting for processors: torchrlopt/machine/contention.py."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchrlopt import _C
from torchrlopt.machine import contention
from torchrlopt.substitutions import load_library


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="the kernel does not count waiting"
)


@pytest.fixture
def busy_core() -> Iterator[None]:
    """This thread shares its core with two processes that never sleep."""
    core, everywhere = min(os.sched_getaffinity(0)), os.sched_getaffinity(0)
    others = [multiprocessing.get_context("fork").Process(target=spin, args=(100.0,)) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for other in others:
            assert other.pid is not None
            os.sched_setaffinity(other.pid, {core})
        os.sched_setaffinity(0, {core})
        yield
    finally:
        os.sched_setaffinity(0, everywhere)
        for other in others:
            other.kill()
            other.join()


@pytest.mark.usefixtures("busy_core")
def test_waiting_for_a_processor_that_another_process_uses_is_seen() -> None:
    waited, start = contention.waited_ns(), time.perf_counter_ns()
    spin(0.3)  # of which it gets a third
    waited, wall = contention.waited_ns() - waited, time.perf_counter_ns() - start
    assert not contention.is_calm(waited, wall)


@pytest.mark.usefixtures("busy_core")
def test_budgets_stand_still_while_others_have_the_processor() -> None:
    own, wall = contention.own_time(), time.perf_counter()
    spin(0.3)
    own, wall = contention.own_time() - own, time.perf_counter() - wall
    assert own < wall / 1.5

    graph = _C.parse_graph("graph (x: f32[4,4], %w: f32[4,4]) { a = MatMul(x, %w) y = Add(a, x) return y }")
    wall = time.perf_counter()
    found = _C.search(graph, load_library(), _C.CostModel(), searcher="annealing", budget_ms=300)
    assert found["seconds"] >= 0.29
    assert found["seconds"] < (time.perf_counter() - wall) / 1.5


def test_of_hundreds_of_threads_the_oldest_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(thread: int) -> int:
        return int(Path(f"{contention._TASKS}/{thread}/schedstat").read_text().split()[1])

    monkeypatch.setattr(contention, "_held_back_ns", lambda: 0)
    monkeypatch.setattr(contention, "_MOST_THREADS", 1)
    is_over = threading.Event()
    others = [threading.Thread(target=is_over.wait) for _ in range(8)]
    for other in others:
        other.start()
    try:
        before, found, after = read(os.getpid()), contention.waited_ns(), read(os.getpid())
        assert before <= found <= after
        monkeypatch.setattr(contention, "_MOST_THREADS", 1000)
        ids = [other.native_id for other in others if other.native_id is not None]
        assert contention.waited_ns() >= after + sum(map(read, ids))
    finally:
        is_over.set()
        for other in others:
            other.join()


def test_the_oldest_is_the_first_where_ids_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 32_700)
    oldest_first = ["32700", "32701", "32767", "7", "302"]
    assert sorted(sorted(oldest_first), key=contention._age) == oldest_first


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
