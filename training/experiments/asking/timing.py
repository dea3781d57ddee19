"""Times of a graph as shares of the first graph's, on a machine whose speed changes while it is asked."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch

from torchrlopt.executors.registry import Lowered
from torchrlopt.machine.profiling import Source
from torchrlopt.machine.profiling.garbage import no_garbage_collection

BLOCK = 4  # calls that are timed one after the other, after one that is not
AGREE = 1.05  # of two blocks of the first graph, the larger by the smaller
TRIES = 6  # until they agree
HOW = f"{BLOCK} {AGREE} {TRIES}"  # what times depend on, for the names of runs

Seconds = Callable[[], float]


def ratios(call: Lowered, first: Lowered, source: Source, blocks: int) -> list[float]:
    """Ratios, each of a block of calls of both; see `ratio`."""
    own, of_first = (functools.partial(least_seconds, each, source) for each in (call, first))
    return [ratio(own, of_first) for _ in range(blocks)]


def ratio(own: Seconds, first: Seconds) -> float:
    """A time by that of the first graph, which is taken before and after.

    A neighbour on the same host can halve the speed of a processor for some hundredths of a second, and no
    count of the system tells of it: the first graph's times then differ, and all is timed again. Where they
    never agree, those count that differed least.

    Args:
        own: takes the graph's time.
        first: takes the first graph's.
    """
    found = []
    before = first()
    for _ in range(TRIES):
        time_of_own, after = own(), first()
        differ = max(before, after) / min(before, after)
        found.append((differ, 2 * time_of_own / (before + after)))
        if differ <= AGREE:
            break
        before = after
    return min(found)[1]


def least_seconds(call: Lowered, source: Source) -> float:
    """Of a block's calls: what else a machine does can only add to a time."""
    times = []
    with torch.no_grad(), no_garbage_collection():
        call(*source.inputs)  # brings its own weights back into the caches
        for _ in range(BLOCK):
            began = time.perf_counter()
            call(*source.inputs)
            times.append(time.perf_counter() - began)
    return min(times)
