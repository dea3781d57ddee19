"""Single-threaded samples delayed by other load: torchrlopt/judge/timing.py with the kernel's clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from torchrlopt.judge import timing
from torchrlopt.machine import contention
from torchrlopt.machine.contention import own_waited_ns, waited_ns


class HeldUp:
    """A neighbour that takes the processor for most of every call, and a clock that says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, held_ms: int, own_ms: int) -> None:
        self._held_ns, self._own_ns = held_ms * 10**6, own_ms * 10**6
        self._told_ns = self._now_ns = 0
        monkeypatch.setattr(contention, "own_waited_ns", lambda: self._told_ns)
        monkeypatch.setattr(contention, "waited_ns", lambda: self._told_ns)
        monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: self._now_ns)

    def __call__(self, *_: Any) -> tuple[()]:
        self._told_ns += self._held_ns
        self._now_ns += self._held_ns + self._own_ns
        return ()


@pytest.mark.parametrize(("num_threads", "is_calm", "ms"), [(1, True, 2.0), (2, False, 52.0)])
def test_what_holds_the_only_thread_up_is_not_its_time(
    monkeypatch: pytest.MonkeyPatch, num_threads: int, is_calm: bool, ms: float
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    sample = timing.sample_of(HeldUp(monkeypatch, 50, 2), list, 1, False)
    assert sample.is_calm == is_calm
    assert sample.ms == ms


def test_a_thread_waits_no_longer_than_all_of_them() -> None:
    if not Path("/proc/thread-self/schedstat").exists():
        pytest.skip("the kernel does not count how long threads wait")
    own = own_waited_ns()
    assert 0 <= own <= waited_ns()


def test_a_wait_that_is_longer_than_the_call_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fell on the moment at which the clock was read."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    call = HeldUp(monkeypatch, 50, 2)
    real = call.__call__

    def longer(*_: Any) -> tuple[()]:
        call._told_ns += 10**9
        return real()

    sample = timing.sample_of(longer, list, 1, False)
    assert not sample.is_calm
    assert sample.ms == 52.0


def test_a_wait_outside_of_the_call_is_not_subtracted_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread lost the processor between the reading of its waits and that of the clock."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    call = HeldUp(monkeypatch, 0, 9)

    def reading() -> int:
        call._told_ns += 5 * 10**6
        call._now_ns += 5 * 10**6
        return call._told_ns

    monkeypatch.setattr(contention, "own_waited_ns", reading)
    sample = timing.sample_of(call, list, 1, False)
    assert not sample.is_calm
    assert sample.ms == 9.0


def test_no_sample_is_below_the_processor_time_of_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    spent = iter((0, 9 * 10**6))
    monkeypatch.setattr(timing.time, "thread_time_ns", lambda: next(spent))
    assert timing.sample_of(HeldUp(monkeypatch, 6, 5), list, 1, False).ms == 9.0
