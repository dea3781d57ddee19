"""Samples of one thread that others hold up: torchrlopt/compile/timing.py with the clock of the kernel."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from torchrlopt.compile import timing
from torchrlopt.machine import contention
from torchrlopt.machine.contention import own_waited_ns, waited_ns


class HeldUp:
    """A neighbour that takes the processor for so long in every call, as the kernel would tell."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, held_ms: float) -> None:
        self._held_ms = held_ms
        self._told = 0
        monkeypatch.setattr(contention, "own_waited_ns", lambda: self._told)
        monkeypatch.setattr(contention, "waited_ns", lambda: self._told)

    def __call__(self, *_: Any) -> tuple[()]:
        time.sleep(self._held_ms / 1e3)
        self._told += int(self._held_ms * 1e6)
        return ()


@pytest.mark.parametrize(("num_threads", "is_calm"), [(1, True), (2, False)])
def test_what_holds_the_only_thread_up_is_not_its_time(
    monkeypatch: pytest.MonkeyPatch, num_threads: int, is_calm: bool
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    sample = timing._sample(HeldUp(monkeypatch, 50.0), list, 1, False)
    assert sample.is_calm == is_calm
    assert (sample.ms < 50.0) == is_calm


def test_a_thread_waits_no_longer_than_all_of_them() -> None:
    if not Path("/proc/thread-self/schedstat").exists():
        pytest.skip("the kernel does not count how long threads wait")
    own = own_waited_ns()
    assert 0 <= own <= waited_ns()
