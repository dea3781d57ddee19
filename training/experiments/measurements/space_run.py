"""A run that measures every graph of a space on an executor: what all rows are then told when they ask.

With all answers known, asking costs nothing, the best is known, and rows are compared on the same answers.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchrlopt import _C
from torchrlopt.errors import RlOptError
from torchrlopt.executors.registry import Lowered
from torchrlopt.machine.profiling import Source
from torchrlopt.machine.profiling.garbage import no_garbage_collection
from torchrlopt.substitutions import load_library
from torchrlopt.substitutions.load import subset_of
from training.device.prices import cost_of, typical_prices
from training.experiments.asking.learners import FAILED
from training.experiments.asking.space import Space, Steps
from training.experiments.measurements.subjects import MOST_GRAPHS, SUBJECTS
from training.experiments.own_process import in_own_process
from training.experiments.runs import MEASURED, Run, versions
from training.graphs.fingerprint import fingerprint

PASSES = 2  # the first is what is told, the second what is true
THREADS = 1
_BLOCK = 4  # calls of a graph that are timed one after the other, after one that is not
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
        ratios: [N][PASSES][calls], the time of a call by that of the first graph just
            before.
        first_us: median of the first graph's calls.
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
        blocks: of timed calls of each graph, in each pass.
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
            f"{PASSES} {_BLOCK} {MOST_GRAPHS} {typical_prices(self.executor).to_json()} {versions(*MEASURED)}"
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
    first_us: list[float] = []
    with torch.no_grad(), no_garbage_collection():
        for begin in range(0, len(space.graphs), _TOGETHER):
            lowered: dict[int, Lowered] = {}
            for place in range(begin, min(begin + _TOGETHER, len(space.graphs))):
                try:
                    lowered[place] = source.lower(space.graphs[place], run.executor)
                    lowered[place](*source.inputs)
                except RlOptError as error:
                    lowered.pop(place, None)
                    reasons[str(place)] = str(error).splitlines()[0]
            for _ in range(PASSES):
                for place, call in lowered.items():
                    own, ours = _in_turns(call, first, source, run.blocks)
                    ratios[place].append(own)
                    first_us += ours
            lowered.clear()
    return MeasuredSpace(
        library.names,
        space.graphs[0].text(),
        space.steps,
        space.next,
        list(map(fingerprint, space.graphs)),
        ratios,
        float(np.median(first_us)),
        reasons,
    )


def _in_turns(call: Lowered, first: Lowered, source: Source, blocks: int) -> tuple[list[float], list[float]]:
    """Ratios of calls to those of the first graph just before, and the latter's microseconds by block."""
    ratios: list[float] = []
    firsts: list[float] = []
    for _ in range(blocks):
        base, own = _timed(first, source), _timed(call, source)
        firsts.append(float(np.median(base)))
        ratios += [round(each / firsts[-1], 5) for each in own]
    return ratios, firsts


def _timed(call: Lowered, source: Source) -> list[float]:
    """Microseconds of a block of calls."""
    call(*source.inputs)  # brings its own weights back into the caches
    times = []
    for _ in range(_BLOCK):
        begin = time.perf_counter()
        call(*source.inputs)
        times.append(1e6 * (time.perf_counter() - begin))
    return times
