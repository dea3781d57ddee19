"""A run that measures every graph of a space on an executor: what all rows are then told when they ask.

With all answers known, asking costs nothing, the best is known, and rows are compared on the same answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchrlopt import _C
from torchrlopt.errors import RlOptError
from torchrlopt.executors.registry import Lowered
from torchrlopt.substitutions import load_library
from torchrlopt.substitutions.load import subset_of
from training.device.prices import cost_of, typical_prices
from training.experiments.asking import timing
from training.experiments.asking.learners import FAILED
from training.experiments.asking.space import Space, Steps
from training.experiments.measurements.subjects import MOST_GRAPHS, SUBJECTS
from training.experiments.own_process import in_own_process
from training.experiments.runs import MEASURED, Run, versions
from training.graphs.fingerprint import fingerprint

PASSES = 2  # the first is what is told, the second what is true
THREADS = 1
_TOGETHER = 40  # graphs that are held lowered at the same time

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class MeasuredSpace:
    """What a run leaves; N graphs, the first is where all begin.

    Attributes:
        names: of the substitutions.
        first: text of the first graph.
        steps: that lead to each.
        next: see `Space`.
        keys: fingerprint of each.
        ratios: [N][PASSES][blocks], the time of a block of calls by that of the first graph before and after.
        first_us: of the first graph's call, the median of its blocks.
        reasons: why graphs were not measured, by position.
    """

    names: list[str]
    first: str
    steps: list[Steps]
    next: list[list[int]]
    keys: list[str]
    ratios: list[list[list[float]]]
    first_us: float
    reasons: dict[str, str]

    def told(self, seed: int) -> Floats:
        """[N], one measurement of each graph, as shares of the first one's time: half of the first pass.

        Args:
            seed: of which of the calls it is made.
        """
        rng = np.random.default_rng(seed)
        return np.array(
            [
                np.median(rng.permutation(each[0])[: len(each[0]) // 2]) if each else FAILED
                for each in self.ratios
            ]
        )

    @property
    def fastest(self) -> int:
        """Position of the graph with the least time by the calls of the first pass.

        `true` is of other calls: by the same ones the fastest of many would be the luckiest too, and any
        choice slower than it.
        """
        return int(np.argmin([np.median(each[0]) if each else FAILED for each in self.ratios]))

    @property
    def noise(self) -> float:
        """By how much a time of the second pass differs from one that is told, as a share; a median."""
        return float(np.median(np.abs(self.told(0) / self.true - 1)))

    def library(self) -> _C.Library:
        """The substitutions."""
        return subset_of(load_library(), self.names)

    @property
    def true(self) -> Floats:
        """[N], the same of calls that nobody is told of: what the least of many is really."""
        return np.array([np.median(each[1]) if each else FAILED for each in self.ratios])


@dataclasses.dataclass(frozen=True)
class SpaceRun(Run[MeasuredSpace]):
    """See `Run`.

    Attributes:
        subject: a name in `SUBJECTS`.
        executor: that runs the graphs.
        blocks: of timed calls of each graph in each pass, at least two.
    """

    subject: str
    executor: str
    blocks: int

    @property
    def name(self) -> str:
        """See `Run`."""
        return f"space-{self.subject}-{self.executor}-{self.blocks}-{load_library().hash[:8]}"

    @property
    def beside(self) -> str:
        """See `Run`."""
        return (
            f"{PASSES} {timing.HOW} {MOST_GRAPHS} {typical_prices(self.executor).to_json()} "
            f"{versions(*MEASURED)}"
        )

    @property
    def is_measurement(self) -> bool:
        """See `Run`."""
        return True

    def make(self, tell: Callable[[], None]) -> MeasuredSpace:
        """See `Run`."""
        found = in_own_process(measure, self)
        tell()
        return found

    def read(self, kept: Mapping[str, Any]) -> MeasuredSpace:
        """See `Run`."""
        steps = [[(name, location) for name, location in each] for each in kept["steps"]]
        fields = [field.name for field in dataclasses.fields(MeasuredSpace)]  # older files have more
        return MeasuredSpace(**{**{name: kept[name] for name in fields}, "steps": steps})


def measure(run: SpaceRun) -> MeasuredSpace:
    """Measure all graphs in this process, which should be a new one."""
    torch.set_num_threads(THREADS)
    subject, cost = SUBJECTS[run.subject], cost_of(typical_prices(run.executor))
    source = subject.source()
    library = subject.library(source.program.graph)
    space = Space.of(source.program.graph, library, cost, MOST_GRAPHS)
    ratios: list[list[list[float]]] = [[] for _ in space.graphs]
    reasons: dict[str, str] = {}
    first = source.lower(space.graphs[0], run.executor)
    for begin in range(0, len(space.graphs), _TOGETHER):
        lowered: dict[int, Lowered] = {}
        for place in range(begin, min(begin + _TOGETHER, len(space.graphs))):
            try:
                lowered[place] = source.lower(space.graphs[place], run.executor)
                timing.least_seconds(lowered[place], source)
            except RlOptError as error:
                lowered.pop(place, None)
                reasons[str(place)] = str(error).splitlines()[0]
        for _ in range(PASSES):
            for place, call in lowered.items():
                told = timing.ratios(call, first, source, run.blocks)
                ratios[place].append([round(each, 5) for each in told])
        lowered.clear()
    first_s = [timing.least_seconds(first, source) for _ in range(PASSES * run.blocks)]
    return MeasuredSpace(
        library.names,
        space.graphs[0].text(),
        space.steps,
        space.next,
        list(map(fingerprint, space.graphs)),
        ratios,
        1e6 * float(np.median(first_s)),
        reasons,
    )
