"""Decides whether a rewritten graph is faster: both graphs are timed alternately on the same inputs.

Other processes, and quotas, slow down a call of several threads many times at the barriers between them, and
one graph more than the other: a graph that is 1.5x faster was once measured as 7x faster. So each sample
records how long the process waited for processors. Samples with waits are left out as long as there are
others, and the quick ones of the rest are used. A sample with waits still gives a bound: the call took no
less than its time minus the waits of all threads. If that bound decides, we do not wait for a calm moment. A
single thread has no barriers to wait at: its wait is subtracted.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from torchrlopt.judge.policy import noise_of
from torchrlopt.machine import contention
from torchrlopt.report import Timing

Callee = Callable[..., Sequence[Any]]

# Calls are timed in blocks of at least this length; longer if runtimes that wake up differently compete.
_BLOCK_MS, _SETTLED_MS = 0.5, 4.0
# After this rest, threads that the last call left spinning have gone to sleep. Waking them is so small a part
# of a long call that long calls get no extra warm-up call.
_REST_S, _LONG_MS = 0.02, 40.0

_PATIENCE, _LAST = 4.0, 6.0
"""Multiples of the time limit to wait for calm samples, and for any samples at all."""

_HIDDEN = 0.1
"""Noise that may hide more than this gain is worth waiting for, too. Where another machine shares the cores
of this one, calls take up to twice as long for seconds, although the process never waits for a processor."""

# Calm samples of each graph: for a verdict when the time is up, for a clear one, and at most.
_FEW, _MANY, _MOST = 3, 9, 41
_PLAIN, _PLAIN_AFTER = {2: 8.0, 3: 4.0, 4: 3.0}, 2.0
"""Times are decisive if they are this many times their own spread away from the threshold, by the number of
calm samples of each graph: few may be close to each other by accident."""
_READING_NS = 200_000  # a reading of the clocks takes microseconds: in one this long, the thread waited
_HELD_UP = 6  # samples of each graph if hardly any is calm
_MOST_ROUNDS = 400


class Sample(NamedTuple):
    """The time of one call.

    Attributes:
        ms: milliseconds.
        is_calm: whether the process had its processors meanwhile.
        waited_ms: how long its threads waited for processors, summed over all of them; infinite if not known.
        spent_ms: processor time of the calling thread, which the call cannot have undercut.
    """

    ms: float
    is_calm: bool = True
    waited_ms: float = math.inf
    spent_ms: float = 0.0

    @property
    def least_ms(self) -> float:
        """Lower bound on the call's time without waits: no two threads wait at the same time."""
        return self.ms if self.is_calm else max(self.spent_ms, self.ms - self.waited_ms)


Samples = tuple[list[Sample], list[Sample]]
_Times = tuple[list[float], list[float]]


def measure(
    before: Callee,
    after: Callee,
    inputs: Callable[[], Sequence[Any]],
    limit_ms: float,
    min_gain: float,
    settle: bool = False,
    is_warm: bool = False,
) -> Timing:
    """Time two callables in alternation until the verdict on `min_gain` is clear or `limit_ms` is over.

    Args:
        before: the original.
        after: the rewritten one.
        inputs: makes the arguments of one call, outside the timed part: a call may write to its own.
        limit_ms: wall-clock limit in milliseconds, checked between rounds; at least three rounds are run, or
            two if even those would take twice as long. While other processes hold this one up, or noise may
            hide a gain of a tenth, it may be four times as long, and six times for the first six rounds.
        min_gain: the gain that the verdict is about.
        settle: rest before each is timed, make one extra call if calls are short, and time longer blocks.
            Threads of one runtime spin for milliseconds after its call, and would slow another one down.
        is_warm: both are warmed up: `after` has been called on these inputs, and the code of `before` has
            been generated and its operators have been called.
    """
    cuda = any(isinstance(x, torch.Tensor) and x.is_cuda for x in inputs())
    start = time.perf_counter()
    samples: Samples = ([], [])
    with torch.no_grad():
        if not is_warm:
            after(*inputs())  # warm-up: evaluates expressions over these weights
        block_ms = _SETTLED_MS if settle else _BLOCK_MS
        first = sample_of(before, inputs, 1, cuda)
        rough_ms = first.ms
        if rough_ms < block_ms:  # else each call is timed by itself, however long the other takes
            rough_ms = max(rough_ms, sample_of(after, inputs, 1, cuda).ms)
        repeats = max(1, min(50, int(block_ms / max(rough_ms, 1e-3))))
        if first.ms >= block_ms and is_warm and not settle:  # the first call is a valid sample
            samples[0].append(first)
            samples[1].append(sample_of(after, inputs, 1, cuda))
        for number in range(len(samples[0]), _MOST_ROUNDS):
            if is_over(samples, (time.perf_counter() - start) * 1e3 / limit_ms, min_gain):
                break
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                if settle:
                    time.sleep(_REST_S)
                    if rough_ms < _LONG_MS:
                        sample_of((before, after)[which], inputs, 1, cuda)
                samples[which].append(sample_of((before, after)[which], inputs, repeats, cuda))
    return verdict(samples, min_gain)


def is_over(samples: Samples, spent: float, min_gain: float) -> bool:
    """Whether to stop sampling.

    `spent` is the time since the beginning as a multiple of the limit.
    """
    calm = _calm(samples)
    num_rounds, num_calm = len(samples[0]), min(map(len, calm))
    if num_rounds < 2:
        return False
    if _plain_sign(calm, min_gain) or _plain_bound(samples, min_gain) is not None:
        return True
    if num_calm < min(_FEW, num_rounds):  # the machine is busy
        return spent > (_PATIENCE if num_rounds >= _HELD_UP else _LAST)
    limit = 2 if num_calm < _FEW else 1  # fewer have to do if calls are long
    if num_calm >= _MOST or spent > _PATIENCE or (spent > limit and not _is_hidden(samples, min_gain)):
        return True
    return num_calm >= _MANY and _is_clear(calm, min_gain)


def _is_hidden(samples: Samples, min_gain: float) -> bool:
    """Whether noise may hide a large gain."""
    found = verdict(samples, min_gain)
    return noise_of(found) > max(_HIDDEN, abs(found.gain - min_gain))


def verdict(samples: Samples, min_gain: float) -> Timing:
    """Return the timing that the samples imply for `min_gain`.

    With two calm samples of each graph, uses their lower quartile: noise from neighbours on the host only
    adds time, and a single quick call may be an accident. Otherwise uses the bounds if they decide; the
    difference is at least as large as they say. Otherwise uses the quickest samples, which were held up
    least.
    """
    calm = _calm(samples)
    used = calm if min(map(len, calm)) >= 2 else _plain_bound(samples, min_gain)
    is_calm = used is not None
    is_bound = is_calm and used is not calm
    used = used or _all(samples)
    before_ms, after_ms = (_lower_quartile(side) if is_calm else min(side) for side in used)
    ratios = [after / before for before, after in zip(*used, strict=False)]
    quartiles = statistics.quantiles(ratios, n=4)
    return Timing(
        before_ms=before_ms,
        after_ms=after_ms,
        gain=1 - after_ms / before_ms,
        spread=(quartiles[2] - quartiles[0]) / 2,
        num_rounds=len(ratios),
        is_calm=is_calm,
        is_bound=is_bound,
    )


def _calm(samples: Samples) -> _Times:
    before, after = ([each.ms for each in side if each.is_calm] for side in samples)
    return before, after


def _all(samples: Samples) -> _Times:
    before, after = ([each.ms for each in side] for side in samples)
    return before, after


def _plain_bound(samples: Samples, min_gain: float) -> _Times | None:
    """Lower bounds of the difference, subtracting waits from the slower graph only; None if undecided."""
    all_before, all_after = _all(samples)
    least_before, least_after = ([each.least_ms for each in side] for side in samples)
    for times, sign in (((least_before, all_after), 1), ((all_before, least_after), -1)):
        if _plain_sign(times, min_gain) == sign:
            return times
    return None


def _lower_quartile(times_ms: Iterable[float]) -> float:
    return statistics.quantiles(times_ms, n=4, method="inclusive")[0]


def _is_clear(times: _Times, min_gain: float) -> bool:
    """Whether all but the outer tenths of the times lie on one side of the threshold."""
    (before, after) = (_inner(side) for side in times)
    return after[-1] < (1 - min_gain) * before[0] or after[0] > (1 - min_gain) * before[-1]


def _inner(times_ms: list[float]) -> list[float]:
    cut = len(times_ms) // 10
    return sorted(times_ms)[cut : len(times_ms) - cut]


def _plain_sign(times: _Times, min_gain: float) -> int:
    """1 for a clear gain, -1 for a clear lack of one, 0 if times are too close to the threshold to say."""
    if min(map(len, times)) < 2:
        return 0
    before, after = [(1 - min_gain) * each for each in times[0]], times[1]
    factor = _PLAIN.get(min(map(len, times)), _PLAIN_AFTER)
    needed = factor * max(max(side) - min(side) for side in (before, after))
    if min(before) - max(after) > needed:
        return 1
    return -1 if min(after) - max(before) > needed else 0


def sample_of(
    call: Callable[..., Any],
    inputs: Callable[[], Sequence[Any]],
    repeats: int,
    cuda: bool,
    is_brief: bool = False,
) -> Sample:
    """Time one call as the mean over `repeats` calls; with one thread, its waits are subtracted.

    Never below the processor time that this thread spent in the calls.

    Args:
        call: what is timed.
        inputs: makes the arguments of one call.
        repeats: number of calls.
        cuda: whether to synchronise with the GPU.
        is_brief: do not read how long other threads wait. The reading empties the caches, so that a call that
            is timed by itself takes up to twice as long; without it, every sample counts as calm.
    """
    arguments = [inputs() for _ in range(repeats)]
    if cuda:
        torch.cuda.synchronize()
    is_alone = torch.get_num_threads() == 1 and not cuda
    waited = 0 if is_brief else contention.waited_ns()
    opened = time.perf_counter_ns()
    own = contention.own_waited_ns() if is_alone else 0
    spent, start = time.thread_time_ns(), time.perf_counter_ns()
    for each in arguments:
        call(*each)
    if cuda:
        torch.cuda.synchronize()
    end = time.perf_counter_ns()
    spent = time.thread_time_ns() - spent
    own = contention.own_waited_ns() - own if is_alone else 0
    closed = time.perf_counter_ns()
    waited = 0 if is_brief else contention.waited_ns() - waited - own
    wall, scale = max(1, end - start), repeats * 1e6  # the clock may be coarse
    # A wait between two readings of clocks is counted, but is not a part of the call.
    was_held_up = is_alone and max(start - opened, closed - end) > _READING_NS
    if was_held_up or own >= wall or waited < 0:
        return Sample(wall / scale, is_calm=False, spent_ms=min(spent, wall) / scale)
    ns = min(max(wall - own, spent), wall)
    return Sample(ns / scale, contention.is_calm(waited, ns), waited / scale, min(spent, wall) / scale)
