"""A run that times what all rows chose, by calls that none of them was told of."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchrlopt import _C
from torchrlopt.errors import RlOptError
from torchrlopt.executors.registry import Lowered
from training.experiments.asking.learners import FAILED
from training.experiments.asking.timing import HOW, least_seconds, ratios
from training.experiments.efficiency.asking_run import AskingRun
from training.experiments.efficiency.subjects import source_of
from training.experiments.own_process import in_own_process
from training.experiments.runs import MEASURED, Run, finished, versions
from training.graphs.fingerprint import fingerprint

_TOGETHER = 40  # graphs that are held lowered at the same time


@dataclasses.dataclass(frozen=True)
class Times:
    """What a run leaves.

    Attributes:
        blocks: by fingerprint, the time of each block of calls as a share of the first graph's around it.
        first_ms: of a call of the first graph.
    """

    blocks: dict[str, list[float]]
    first_ms: float

    def of(self, text: str) -> float:
        """The median of a graph's, of every second block."""
        return float(np.median(_second_half(self.blocks[fingerprint(_C.parse_graph(text))])))

    @property
    def fastest(self) -> float:
        """The same of the graph that is the fastest by the other blocks: not of the luckiest one."""
        found = min(self.blocks.values(), key=lambda each: float(np.median(each[::2])))
        return float(np.median(_second_half(found)))

    @property
    def noise(self) -> float:
        """By how much the medians of two halves of a graph's blocks differ, as a share; a median."""
        halves = [
            (np.median(each[::2]), np.median(_second_half(each)))
            for each in self.blocks.values()
            if len(each) > 1
        ]
        return float(np.median([abs(one / other - 1) for one, other in halves]))


def _second_half(blocks: Sequence[float]) -> Sequence[float]:
    """Every second block, or the only one."""
    return blocks[1::2] or blocks


@dataclasses.dataclass(frozen=True)
class TrueRun(Run[Times]):
    """See `Run`.

    Attributes:
        subject: one of `subjects.SUBJECTS`.
        executor: that runs the graphs.
        blocks: of calls of each graph.
        askings: whose choices are timed, all of that subject and executor.
        out: folder of the experiments.
    """

    subject: str
    executor: str
    blocks: int
    askings: tuple[AskingRun, ...]
    out: Path = dataclasses.field(compare=False)

    @property
    def name(self) -> str:
        """See `Run`."""
        code = hashlib.sha256(" ".join(each.name for each in self.askings).encode()).hexdigest()[:8]
        return f"efficiency-true-{self.subject}-{self.executor}-{self.blocks}-{code}"

    @property
    def beside(self) -> str:
        """See `Run`."""
        return f"{HOW} {versions(*MEASURED)}"

    @property
    def is_measurement(self) -> bool:
        """See `Run`."""
        return True

    @property
    def needs(self) -> Sequence[Run[Any]]:
        """See `Run`."""
        return self.askings

    def make(self, tell: Callable[[], None]) -> Times:
        """See `Run`."""
        found = finished(self.askings, self.out)
        texts = dict.fromkeys(
            chosen.text for asking in self.askings for chosen in found.outcome(asking).chosen
        )
        times = in_own_process(measure, self.subject, self.executor, self.blocks, list(texts))
        tell()
        return times

    def read(self, kept: Mapping[str, Any]) -> Times:
        """See `Run`."""
        return Times(**kept)


def measure(subject: str, executor: str, blocks: int, texts: Sequence[str]) -> Times:
    """Time graphs in this process, which should be a new one: in turns, each beside the first graph."""
    torch.set_num_threads(1)
    source = source_of(subject)
    first = source.lower(source.program.graph, executor)
    graphs = {fingerprint(graph): graph for graph in map(_C.parse_graph, texts)}
    found: dict[str, list[float]] = {}
    keys = list(graphs)
    for begin in range(0, len(keys), _TOGETHER):
        together: dict[str, Lowered] = {}
        for key in keys[begin : begin + _TOGETHER]:
            found[key] = []
            try:
                together[key] = source.lower(graphs[key], executor)
                least_seconds(together[key], source)
            except RlOptError:
                together.pop(key, None)
                found[key].append(FAILED)
        for _ in range(blocks):
            for key, call in together.items():
                found[key] += ratios(call, first, source, 1)
    first_s = [least_seconds(first, source) for _ in range(blocks)]
    return Times(found, 1e3 * float(np.median(first_s)))
