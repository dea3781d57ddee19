"""Measures graphs of one model when they are asked for."""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from torchrlopt import _C
from torchrlopt.errors import RlOptError
from torchrlopt.machine.profiling import Source
from torchrlopt.substitutions import load_library
from training.episodes.answers import Answers
from training.experiments.asking.learners import FAILED
from training.experiments.asking.timing import ratios
from training.graphs.fingerprint import fingerprint

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

    A time is the least of a block of calls, as a share of that of blocks of the first graph around it.
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
