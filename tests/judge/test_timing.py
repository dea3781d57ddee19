"""Timing of two callables, with predefined samples: torchrlopt/judge/timing.py."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from torchrlopt.judge import timing
from torchrlopt.judge.timing import Sample


class Call:
    """Takes so long, in milliseconds, one call after the other; `None` of two: something held it up."""

    def __init__(self, *times_ms: float | Sample) -> None:
        self.samples = [each if isinstance(each, Sample) else Sample(each) for each in times_ms]
        self.count = 0
        self.on_call = lambda call: None

    def __call__(self, *_: Any) -> tuple[()]:
        self.on_call(self)
        return ()

    def sample(self) -> Sample:
        self.count += 1
        return self.samples[self.count % len(self.samples)]


@pytest.fixture(autouse=True)
def given_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples as given, and a clock that goes on by them."""
    now_s = 0.0

    def sample(call: Call, inputs: Sequence[Any], repeats: int, cuda: bool) -> Sample:
        nonlocal now_s
        found = call.sample()
        now_s += found.ms / 1e3
        return found

    monkeypatch.setattr(timing, "sample_of", sample)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now_s)


def disturbed(quick_ms: float, seed: int) -> Iterator[Sample]:
    """Calls of a graph on a machine of which another process takes a core for every other moment.

    What is held up takes three to ten times as long, and the moments are longer than a round.
    """
    draw = random.Random(seed)
    while True:
        for is_calm in (True, False):
            for _ in range(draw.randrange(2, 7)):
                factor = draw.uniform(1, 1.05) if is_calm else draw.uniform(3, 10)
                yield Sample(quick_ms * factor, is_calm)


def test_timing_tells_fast_from_slow() -> None:
    found = timing.measure(Call(4.0), Call(1.0), list, limit_ms=1e9, min_gain=0.02)
    assert not found.is_bound
    assert (found.before_ms, found.after_ms, found.gain, found.spread) == (4.0, 1.0, 0.75, 0.0)
    assert timing.measure(Call(1.0), Call(4.0), list, limit_ms=1e9, min_gain=0.02).gain == -3.0


def test_a_plain_verdict_ends_early_and_a_close_one_does_not() -> None:
    plain = timing.measure(Call(4.0), Call(1.0), list, limit_ms=1e9, min_gain=0.02)
    close = timing.measure(Call(1.0), Call(0.97, 0.99), list, limit_ms=1e9, min_gain=0.02)
    assert plain.num_rounds == 2
    assert close.num_rounds == 41
    assert close.gain == pytest.approx(0.03, abs=0.011)


def test_the_fewer_the_rounds_the_plainer_is_the_verdict() -> None:
    """Four times that lie close to each other by accident are not enough for a gain of a twentieth."""
    for gain, num_rounds in ((0.5, 2), (0.15, 3), (0.1, 4), (0.08, 5)):
        before, after = (Call(*(base * each for each in (1.0, 1.02))) for base in (1.0, 1 - gain))
        found = timing.measure(before, after, list, limit_ms=1e9, min_gain=0.02)
        assert found.num_rounds == num_rounds, gain


def test_long_calls_are_not_made_twice_before_they_are_timed() -> None:
    """What the check has called is warm: one call says that each is timed by itself, and is a sample."""
    for is_warm, is_slow, num_before, num_after in (
        (True, True, 2, 2), (False, True, 3, 3), (True, False, 3, 3),
    ):  # fmt: skip
        calls = []
        before, after = (Call(ms if is_slow else ms / 1e3) for ms in (400.0, 100.0))
        for which in (before, after):
            which.on_call = calls.append
        found = timing.measure(before, after, list, limit_ms=500, min_gain=0.02, is_warm=is_warm)
        assert found.num_rounds == 2
        assert len(calls) + after.count == num_after
        assert before.count == num_before


def test_the_limit_ends_it() -> None:
    long = timing.measure(Call(100.0), Call(98.0, 99.0), list, limit_ms=500, min_gain=0.02)
    assert long.num_rounds == 3
    longer = timing.measure(Call(900.0), Call(700.0), list, limit_ms=500, min_gain=0.02)
    assert longer.num_rounds == 2


def test_what_noise_may_hide_is_timed_for_longer() -> None:
    """Another machine on the same cores slows down both for some calls, and nobody waits for a processor."""
    slow, quick = [200.0, 203.0, 398.0, 400.0, 204.0, 201.0], [160.0, 319.0, 161.0, 163.0, 318.0, 162.0]
    found = timing.measure(Call(*slow), Call(*quick), list, limit_ms=500, min_gain=0.02)
    assert found.is_calm
    assert 3 < found.num_rounds <= 6
    small = timing.measure(Call(200.0, 204.0), Call(201.0, 203.0), list, limit_ms=500, min_gain=0.02)
    assert small.num_rounds == 3


def test_a_round_that_was_disturbed_does_not_turn_the_verdict() -> None:
    found = timing.measure(Call(2.0), Call(*[1.0] * 9, 50.0), list, limit_ms=1e9, min_gain=0.02)
    assert found.gain == 0.5


@pytest.mark.parametrize("gain", [0.1, -0.1])
def test_what_others_take_does_not_turn_the_verdict(gain: float) -> None:
    for seed in range(50):
        before, after = disturbed(2.0, seed), disturbed(2.0 * (1 - gain), seed + 1000)
        calls = [Call(*(next(each) for _ in range(400))) for each in (before, after)]
        found = timing.measure(*calls, list, limit_ms=200, min_gain=0.02)
        assert found.gain == pytest.approx(gain, abs=0.06)
        assert found.spread < 0.05


def test_where_it_is_never_calm_the_quick_ones_of_four_times_as_long_count() -> None:
    held_up = [Sample(each, False) for each in (3.0, 9.0, 2.0, 30.0, 2.0, 2.0, 5.0)]
    found = timing.measure(
        Call(*held_up), Call(*(Sample(each.ms / 2, False) for each in held_up)), list, 100, 0.02
    )
    assert not found.is_calm
    assert found.num_rounds > 20
    assert found.gain == pytest.approx(0.5)
    assert found.before_ms == pytest.approx(2.0)
    calm = timing.measure(Call(5.0, 5.2), Call(4.9, 5.1), list, 100, 0.02)
    assert calm.is_calm
    assert calm.num_rounds < 20


def test_waits_that_cannot_turn_the_verdict_are_not_waited_out() -> None:
    """On two cores one thread or the other nearly always waits for a little while."""
    slow = [Sample(ms, False, waited) for ms, waited in ((195.0, 10.0), (190.0, 5.0), (200.0, 14.0))]
    quick = [Sample(ms, False, 4.0) for ms in (121.0, 122.0, 123.0)]
    found = timing.measure(Call(*slow), Call(*quick), list, 500, 0.02, is_warm=True)
    assert (found.is_calm, found.is_bound) == (True, True)
    assert found.num_rounds == 2
    # What the slower one waited is not counted as saved.
    assert found.before_ms == pytest.approx(185.5, abs=1)
    assert found.after_ms == pytest.approx(122.5, abs=1)
    lost = timing.measure(Call(*quick), Call(*slow), list, 500, 0.02, is_warm=True)
    assert (lost.num_rounds, lost.is_calm) == (2, True)
    assert lost.gain == pytest.approx(1 - 185.5 / 122.5, abs=0.02)


def test_waits_that_may_be_all_of_the_difference_tell_nothing() -> None:
    slow = [Sample(ms, False, 90.0) for ms in (195.0, 190.0, 200.0)]
    for waited in (4.0, math.inf):
        quick = [Sample(ms, False, waited) for ms in (121.0, 122.0, 123.0)]
        for before, after in ((slow, quick), (quick, slow)):
            found = timing.measure(Call(*before), Call(*after), list, 500, 0.02)
            assert not found.is_calm
            assert found.num_rounds >= 6
