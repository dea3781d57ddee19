"""Is a rewritten graph faster? Both graphs are timed in alternation on the same inputs.

Other processes, and quotas, make a call of several threads many times slower at the barriers between them,
and one graph more than the other: seven times as fast was once measured for a graph that is one and a half
times as fast. So each sample is taken with how long the process had to wait for processors; those in which it
had to are left out as long as there are others, and of the rest the quick ones count. What was held up has a
bound: the call took no less than its time without the waits of all threads. Where that bound decides, no calm
moment is waited for. Where there is one thread, no barrier waits for it: the time for which it was held up is
subtracted.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from torchrlopt.machine import contention
from torchrlopt.report import Timing

Callee = Callable[..., Sequence[Any]]

# Calls are timed together until they take so long; longer where runtimes that wake up differently compete.
_BLOCK_MS, _SETTLED_MS = 0.5, 4.0
# After this, threads that the last call has left spinning have gone to sleep. To wake up takes them so little
# of a long call that it is not made once more for that.
_REST_S, _LONG_MS = 0.02, 40.0

_PATIENCE, _LAST = 4.0, 6.0
"""So many times the limit is waited for samples in which nothing held the process up; and for any at all."""

# Calm samples of each graph: for a verdict when the time is over, a clear one, and for any.
_FEW, _MANY, _MOST = 3, 9, 41
_PLAIN, _PLAIN_AFTER = {2: 8.0, 3: 4.0, 4: 3.0}, 2.0
"""So many times as far as they differ among themselves are times from the threshold that need no more, by the
number of calm samples of each graph: few may be close to each other by accident."""
_HELD_UP = 6  # samples of each graph where hardly any is calm
_MOST_ROUNDS = 400


class Sample(NamedTuple):
    """The time of one call.

    Attributes:
        ms: milliseconds.
        is_calm: whether the process had its processors meanwhile.
        waited_ms: for how long its threads had not, added over all of them; infinite where it is not known.
    """

    ms: float
    is_calm: bool = True
    waited_ms: float = math.inf

    @property
    def least_ms(self) -> float:
        """What the call takes without the waits, at the least: no two threads wait at the same time."""
        return self.ms if self.is_calm else max(0.0, self.ms - self.waited_ms)


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
        inputs: makes the arguments of one call, before its time is taken: a call may write to its own.
        limit_ms: wall-clock limit in milliseconds, looked at between rounds; at least three rounds are run,
            two where even those would take twice as long. While other processes hold this one up, it may be
            four times as long, six times for the first six rounds.
        min_gain: the gain that the verdict is about.
        settle: rest before the time of each is taken, call it once more where calls are short, and take
            longer times. Threads of one runtime spin for milliseconds after its call, and would slow another
            one down.
        is_warm: both have nothing left to do that is not to be timed: `after` has been called on these
            inputs, and of `before` the code has been generated, and its operators have been called.
    """
    cuda = any(isinstance(x, torch.Tensor) and x.is_cuda for x in inputs())
    start = time.perf_counter()
    samples: Samples = ([], [])
    with torch.no_grad():
        if not is_warm:
            after(*inputs())  # evaluates expressions over these weights, which is not to be timed
        block_ms = _SETTLED_MS if settle else _BLOCK_MS
        first = _sample(before, inputs, 1, cuda)
        rough_ms = first.ms
        if rough_ms < block_ms:  # else each call is timed by itself, however long the other one takes
            rough_ms = max(rough_ms, _sample(after, inputs, 1, cuda).ms)
        repeats = max(1, min(50, int(block_ms / max(rough_ms, 1e-3))))
        if first.ms >= block_ms and is_warm and not settle:  # it was a sample like all others
            samples[0].append(first)
            samples[1].append(_sample(after, inputs, 1, cuda))
        for number in range(len(samples[0]), _MOST_ROUNDS):
            if is_over(samples, (time.perf_counter() - start) * 1e3 / limit_ms, min_gain):
                break
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                if settle:
                    time.sleep(_REST_S)
                    if rough_ms < _LONG_MS:
                        _sample((before, after)[which], inputs, 1, cuda)
                samples[which].append(_sample((before, after)[which], inputs, repeats, cuda))
    return verdict(samples, min_gain)


def is_over(samples: Samples, spent: float, min_gain: float) -> bool:
    """Whether no more samples are taken.

    Args:
        samples: of both graphs so far.
        spent: time since the beginning, of what there is.
        min_gain: what the verdict is about.
    """
    calm = _calm(samples)
    num_rounds, num_calm = len(samples[0]), min(map(len, calm))
    if num_rounds < 2:
        return False
    if _plain_sign(calm, min_gain) or _plain_bound(samples, min_gain) is not None:
        return True
    if num_calm < _FEW:  # the machine is busy, or calls take long
        if num_calm == num_rounds:
            return spent > 2
        return spent > (_PATIENCE if num_rounds >= _HELD_UP else _LAST)
    if spent > 1 or num_calm >= _MOST:
        return True
    return num_calm >= _MANY and _is_clear(calm, min_gain)


def verdict(samples: Samples, min_gain: float) -> Timing:
    """What the samples say about `min_gain`.

    Of calm ones, where there are two of each graph, the lower quartile: what neighbours on the host add goes
    one way, and a single quick call may be an accident. Else of bounds, where those decide; the difference is
    at least what they say. Else the quickest, which was held up least.
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
    """The least that a difference can be, waits taken off the slower graph only, where that decides."""
    all_before, all_after = _all(samples)
    least_before, least_after = ([each.least_ms for each in side] for side in samples)
    for times, sign in (((least_before, all_after), 1), ((all_before, least_after), -1)):
        if _plain_sign(times, min_gain) == sign:
            return times
    return None


def _lower_quartile(times_ms: Iterable[float]) -> float:
    return statistics.quantiles(times_ms, n=4, method="inclusive")[0]


def _is_clear(times: _Times, min_gain: float) -> bool:
    """True when all but the outer tenths of the times lie on one side of the threshold, or on the other."""
    (before, after) = (_inner(side) for side in times)
    return after[-1] < (1 - min_gain) * before[0] or after[0] > (1 - min_gain) * before[-1]


def _inner(times_ms: list[float]) -> list[float]:
    cut = len(times_ms) // 10
    return sorted(times_ms)[cut : len(times_ms) - cut]


def _plain_sign(times: _Times, min_gain: float) -> int:
    """1 for a gain, -1 for none: the times lie so much further from the threshold than they differ. Or 0."""
    if min(map(len, times)) < 2:
        return 0
    before, after = [(1 - min_gain) * each for each in times[0]], times[1]
    factor = _PLAIN.get(min(map(len, times)), _PLAIN_AFTER)
    needed = factor * max(max(side) - min(side) for side in (before, after))
    if min(before) - max(after) > needed:
        return 1
    return -1 if min(after) - max(before) > needed else 0


def _sample(call: Callee, inputs: Callable[[], Sequence[Any]], repeats: int, cuda: bool) -> Sample:
    """Mean wall time of one call over `repeats` calls; in one thread without that in which it was held up."""
    arguments = [inputs() for _ in range(repeats)]
    if cuda:
        torch.cuda.synchronize()
    is_alone = torch.get_num_threads() == 1 and not cuda
    waited = contention.waited_ns()
    own = (
        contention.own_waited_ns() if is_alone else 0
    )  # next to the clock: what is read in between is not in it
    start = time.perf_counter_ns()
    for each in arguments:
        call(*each)
    if cuda:
        torch.cuda.synchronize()
    wall = max(1, time.perf_counter_ns() - start)  # a clock may be coarse
    own = contention.own_waited_ns() - own if is_alone else 0
    waited = contention.waited_ns() - waited - own
    scale = repeats * 1e6
    if own >= wall or waited < 0:  # held up at the very moment that the clock was read
        return Sample(wall / scale, is_calm=False)
    return Sample((wall - own) / scale, contention.is_calm(waited, wall - own), waited / scale)
