"""Measures graphs of one model when they are asked for."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import torch

from torchrlopt import _C
from torchrlopt.errors import RlOptError
from torchrlopt.executors.registry import Lowered
from torchrlopt.machine.profiling import Source
from torchrlopt.machine.profiling.garbage import no_garbage_collection
from torchrlopt.substitutions import load_library
from training.episodes.answers import Answers
from training.experiments.asking.learners import FAILED
from training.graphs.fingerprint import fingerprint

BLOCK = 4  # calls that are timed one after the other, after one that is not
AGAIN = 2  # more blocks of what seems to be the fastest so far: the least of many times is a lucky one


@dataclasses.dataclass(frozen=True)
class Best:
    """The graph that was told to be the fastest so far.

    Attributes:
        measurements: after so many.
        told: its time, as a share of the first graph's.
        text: of the graph.
    """

    measurements: int
    told: float
    text: str


class OnDemand(Answers):
    """What a machine answers, measured when it is asked; the time of what was asked before is known.

    A time is the least of a block of calls, as a share of that of a block of the first graph just before.
    What seems to be the fastest graph so far is timed again, and the median counts; it is one measurement.

    Args:
        source: the model.
        executor: that runs the graphs.
        is_at_end: see `Answers`.
    """

    def __init__(self, source: Source, executor: str, is_at_end: bool = False) -> None:
        super().__init__({}, load_library().names, is_at_end=is_at_end)
        self.source, self.executor = source, executor
        self.bests: list[Best] = []
        self.seconds = 0.0  # that lowering and measuring took
        self._known: dict[str, float] = {}
        self._first = source.lower(source.program.graph, executor)

    def time(self, graph: _C.Graph) -> float:
        """The time of a graph, as a share of the first one's; `FAILED` where the executor does not run it."""
        key = fingerprint(graph)
        if key not in self._known:
            began = time.perf_counter()
            self.asked[key] = None
            self._known[key] = self._measure(graph)
            if not self.bests or self._known[key] < self.bests[-1].told:
                self.bests.append(Best(len(self.asked), self._known[key], graph.text()))
            self.seconds += time.perf_counter() - began
        return self._known[key]

    def best_after(self, measurements: int) -> Best:
        """What is chosen after so many measurements, however many were needed to find it."""
        best = [best for best in self.bests if best.measurements <= measurements][-1]
        return dataclasses.replace(best, measurements=measurements)

    def _measure(self, graph: _C.Graph) -> float:
        try:
            lowered = self.source.lower(graph, self.executor)
            found = ratios(lowered, self._first, self.source, 1)
            if self.bests and found[0] < self.bests[-1].told:
                found += ratios(lowered, self._first, self.source, AGAIN)
            return float(np.median(found))
        except RlOptError:
            return FAILED


def ratios(call: Lowered, first: Lowered, source: Source, blocks: int) -> list[float]:
    """Least times of blocks of calls, each by that of a block of the first graph's just before.

    The least, since what else a machine does can only add to a time. It may add to either of the two, so
    that a ratio may be too low as well, and the least of many ratios is.
    """
    found = []
    for _ in range(blocks):
        base = least_seconds(first, source)
        found.append(least_seconds(call, source) / base)
    return found


def least_seconds(call: Lowered, source: Source) -> float:
    """Of a block's calls."""
    times = []
    with torch.no_grad(), no_garbage_collection():
        call(*source.inputs)  # brings its own weights back into the caches
        for _ in range(BLOCK):
            began = time.perf_counter()
            call(*source.inputs)
            times.append(time.perf_counter() - began)
    return min(times)
