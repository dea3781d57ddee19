"""The timing of two callables, with times that are given: torchrlopt/compile/timing.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from torchrlopt.compile import timing


class Call:
    """Takes so long, in milliseconds, one call after the other."""

    def __init__(self, *times_ms: float) -> None:
        self.times_ms = times_ms
        self.count = 0

    def __call__(self, *_: Any) -> tuple[()]:
        return ()

    def time_ms(self) -> float:
        self.count += 1
        return self.times_ms[self.count % len(self.times_ms)]


@pytest.fixture(autouse=True)
def given_times(monkeypatch: pytest.MonkeyPatch) -> None:
    def time_ms(call: Call, inputs: Sequence[Any], repeats: int, cuda: bool) -> float:
        return call.time_ms()

    monkeypatch.setattr(timing, "_time_ms", time_ms)


def test_timing_tells_fast_from_slow() -> None:
    found = timing.measure(Call(4.0), Call(1.0), list, limit_ms=1e9, min_gain=0.02)
    assert (found.before_ms, found.after_ms, found.gain, found.spread) == (4.0, 1.0, 0.75, 0.0)
    assert timing.measure(Call(1.0), Call(4.0), list, limit_ms=1e9, min_gain=0.02).gain == -3.0


def test_a_plain_verdict_ends_early_and_a_close_one_does_not() -> None:
    plain = timing.measure(Call(4.0), Call(1.0), list, limit_ms=1e9, min_gain=0.02)
    close = timing.measure(Call(1.0), Call(0.97, 0.99), list, limit_ms=1e9, min_gain=0.02)
    assert plain.num_rounds == 3
    assert close.num_rounds == 41
    assert close.gain == pytest.approx(0.02, abs=0.011)


def test_a_round_that_was_disturbed_does_not_turn_the_verdict() -> None:
    found = timing.measure(Call(2.0), Call(*[1.0] * 9, 50.0), list, limit_ms=1e9, min_gain=0.02)
    assert found.gain == 0.5
