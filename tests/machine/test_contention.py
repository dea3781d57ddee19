"""The system's counters of waiting for processors: torchrlopt/machine/contention.py."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator

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


def test_a_system_that_does_not_tell_is_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "_TASKS", "/nowhere")
    assert contention.waited_ns() == 0
