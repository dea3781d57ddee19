"""A run that measures the plans of all rows and rivals on one graph, in eager PyTorch and in ONNX Runtime."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchrlopt import _C
from torchrlopt.machine.profiling import run_times, trace
from torchrlopt.plan.search import graph_hash
from torchrlopt.substitutions import load_library
from training.experiments.dissertation.evaluation import Steps
from training.experiments.dissertation.rivals import RivalsRun, random_of
from training.experiments.dissertation.row_run import RowRun
from training.experiments.dissertation.subjects import module_of
from training.experiments.runs import EXECUTORS, MEASURED, Run, finished, versions

ORIGINAL, AGAIN = "original", "original again"
ROUNDS = 9  # of which each gives one median for each plan
ROUND_S = 0.25  # for each plan


@dataclasses.dataclass(frozen=True)
class LatencyOutcome:
    """What a run leaves.

    Attributes:
        milliseconds: by executor and plan: the median of each round, of calls in turns, of which another
            one is the first each time. "original again" is the original graph once more, which says how much
            two measurements of the same differ.
        same: by plan, an earlier plan that leads to the same graph and was measured in its place.
    """

    milliseconds: dict[str, dict[str, list[float]]]
    same: dict[str, str]

    def ratios(self, executor: str, plan: str) -> list[float]:
        """Time of the original by that of a plan, in each round; above 1 is faster.

        The original's is the mean of its two, except against itself once more; 1 for a plan that leaves the
        original as it is.
        """
        if self.same.get(plan, plan) == ORIGINAL:
            return [1.0] * len(self.milliseconds[executor][ORIGINAL])
        of_all = self.milliseconds[executor]
        mine, firsts = of_all[self.same.get(plan, plan)], of_all[ORIGINAL]
        if plan != AGAIN:
            firsts = [(one + other) / 2 for one, other in zip(firsts, of_all[AGAIN], strict=True)]
        return [first / each for first, each in zip(firsts, mine, strict=True)]


@dataclasses.dataclass(frozen=True)
class LatencyRun(Run[LatencyOutcome]):
    """See `Run`.

    Attributes:
        graph: a name in `subjects`.
        rows: whose plans are measured.
        rivals: the others.
        out: folder of the experiments.
    """

    graph: str
    rows: tuple[RowRun, ...]
    rivals: RivalsRun
    out: Path = dataclasses.field(compare=False)

    @property
    def name(self) -> str:
        """See `Run`."""
        code = hashlib.sha256(" ".join(run.name for run in self.needs).encode()).hexdigest()[:8]
        return f"latency-{self.graph}-{code}"

    @property
    def beside(self) -> str:
        """See `Run`."""
        return f"turns {ROUNDS} {ROUND_S} {EXECUTORS} {versions(*MEASURED)}"

    @property
    def is_measurement(self) -> bool:
        """See `Run`."""
        return True

    @property
    def needs(self) -> Sequence[Run[Any]]:
        """See `Run`."""
        return (*self.rows, self.rivals)

    def plans(self) -> dict[str, Steps]:
        """Steps by plan: those of rows are named by `plan_of`."""
        found = finished(self.needs, self.out)
        rivals = found.outcome(self.rivals)
        plans: dict[str, Steps] = {ORIGINAL: [], **rivals.plans}
        plans |= {random_of(row): each.steps for row, each in rivals.random.items()}
        return plans | {plan_of(run): found.outcome(run).played.steps for run in self.rows}

    def make(self, tell: Callable[[], None]) -> LatencyOutcome:
        """See `Run`."""
        source = trace(*module_of(self.graph))[0]
        library = load_library()
        graphs: dict[str, _C.Graph] = {}
        hashes: dict[str, str] = {}
        same: dict[str, str] = {}
        for plan, steps in self.plans().items():
            graph = _C.replay(source.program.graph, library, steps)
            first = hashes.setdefault(graph_hash(graph), plan)
            if first == plan:
                graphs[plan] = graph
            else:
                same[plan] = first
        graphs[AGAIN] = graphs[ORIGINAL]
        times: dict[str, dict[str, list[float]]] = {}
        for executor in EXECUTORS:
            lowered = [source.lower(graph, executor) for graph in graphs.values()]
            seconds = ROUND_S * len(lowered)
            rounds = [run_times(lowered, source.inputs, source.device, seconds) for _ in range(ROUNDS)]
            columns = zip(*rounds, strict=True)
            times[executor] = {
                plan: [us / 1e3 for us in column] for plan, column in zip(graphs, columns, strict=True)
            }
        tell()
        return LatencyOutcome(times, same)

    def read(self, kept: Mapping[str, Any]) -> LatencyOutcome:
        """See `Run`."""
        return LatencyOutcome(**kept)


def plan_of(run: RowRun) -> str:
    """The name of a row's plan among those that are measured."""
    return f"{run.row} {run.seed}"
