"""Is a rewritten graph faster? Both graphs are timed in alternation on the same inputs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchrlopt.report import Timing

Callee = Callable[..., Sequence[Any]]

# Calls are timed together until they take so long; longer where runtimes that wake up differently compete.
_BLOCK_MS, _SETTLED_MS = 0.5, 4.0
# After this, threads that the last call has left spinning have gone to sleep.
_REST_S = 0.02


def measure(
    before: Callee,
    after: Callee,
    inputs: Callable[[], Sequence[Any]],
    limit_ms: float,
    min_gain: float,
    settle: bool = False,
) -> Timing:
    """Time two callables in alternation until the verdict on `min_gain` is clear or `limit_ms` is over.

    Args:
        before: the original.
        after: the rewritten one.
        inputs: makes the arguments of one call, before its time is taken: a call may write to its own.
        limit_ms: wall-clock limit in milliseconds, looked at between rounds; at least three rounds are run,
            two where even those would take twice as long.
        min_gain: the gain that the verdict is about.
        settle: rest and call each once more before its time is taken, and take longer times. Threads of one
            runtime spin for milliseconds after its call, and would slow another one down.
    """
    cuda = any(isinstance(x, torch.Tensor) and x.is_cuda for x in inputs())
    start = time.perf_counter()
    times: tuple[list[float], list[float]] = ([], [])
    with torch.no_grad():
        after(*inputs())  # evaluates expressions over these weights, which is not to be timed
        rough_ms = max(_time_ms(call, inputs, 1, cuda) for call in (before, after))
        block_ms = _SETTLED_MS if settle else _BLOCK_MS
        repeats = max(1, min(50, int(block_ms / max(rough_ms, 1e-3))))
        for number in range(41):
            spent = (time.perf_counter() - start) * 1e3 / limit_ms
            if (number >= 2 and spent > 2) or (number >= 3 and spent > 1):
                break
            if (number >= 7 and _is_clear(times, min_gain)) or (number >= 3 and _is_plain(times, min_gain)):
                break
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                if settle:
                    time.sleep(_REST_S)
                    _time_ms((before, after)[which], inputs, 1, cuda)
                times[which].append(_time_ms((before, after)[which], inputs, repeats, cuda))
    ratios = _ratios(times)
    quartiles = statistics.quantiles(ratios, n=4)
    return Timing(
        before_ms=statistics.median(times[0]),
        after_ms=statistics.median(times[1]),
        gain=1 - statistics.median(ratios),
        spread=(quartiles[2] - quartiles[0]) / 2,
        num_rounds=len(ratios),
    )


def _ratios(times: tuple[list[float], list[float]]) -> list[float]:
    return [after / before for before, after in zip(*times, strict=True)]


def _is_clear(times: tuple[list[float], list[float]], min_gain: float) -> bool:
    """True when all but the outer tenth of the rounds lie on one side of the threshold."""
    ratios = sorted(_ratios(times))
    cut = len(ratios) // 10
    inner = ratios[cut : len(ratios) - cut]
    return inner[-1] < 1 - min_gain or inner[0] > 1 - min_gain


def _is_plain(times: tuple[list[float], list[float]], min_gain: float) -> bool:
    """True when every round lies on one side of the threshold, by more than all of them differ."""
    ratios = _ratios(times)
    distance = min(abs(ratio - (1 - min_gain)) for ratio in ratios)
    is_one_sided = len({ratio < 1 - min_gain for ratio in ratios}) == 1
    return is_one_sided and distance > 2 * (max(ratios) - min(ratios))


def _time_ms(call: Callee, inputs: Callable[[], Sequence[Any]], repeats: int, cuda: bool) -> float:
    """Mean wall time of one call over `repeats` calls, in milliseconds."""
    arguments = [inputs() for _ in range(repeats)]
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for each in arguments:
        call(*each)
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter_ns() - start) / repeats / 1e6
