"""A run of the dissertation's figures: one search on one graph, nothing is measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from torchrlopt import _C
from torchrlopt.machine.cost import cost_model
from torchrlopt.machine.cost.model import device_model
from training.device.prices import typical_prices
from training.experiments.dissertation.libraries import OURS, library
from training.experiments.graphs_of_paper import graph_of
from training.experiments.runs import Run

#: Standard deviation of the logarithm of a price of an operator. TASO measures its prices at the start of
#: each run, so that its runs differ; ours are fixed, and differ by this.
NOISE = 0.05
#: Expansions after which plans are scored, beside the last.
BUDGETS = (10, 30, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
_PATIENCE_MS = 600_000.0  # a safeguard: what ends a search is its number of steps


def prices(executor: str, seed: int) -> _C.CostModel:
    """Typical prices of one thread, the same on every machine; those of other seeds than 0 are disturbed."""
    if seed == 0:
        return cost_model(executor, threads=1)
    rng = np.random.default_rng(seed)
    names = sorted({str(op["name"]) for op in _C.ops()})
    factors = np.exp(NOISE * rng.standard_normal(len(names)))
    return _C.CostModel(device_model(executor, threads=1), scales=dict(zip(names, factors, strict=True)))


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search has found.

    Attributes:
        progress: (expansions, seconds, predicted time of the best graph) at each time that it fell, and at
            the end; by the search's own prices.
        scored: (expansions, share of the time that the plan saves) after each of `BUDGETS`, by prices that
            nothing has disturbed: by the disturbed ones that led it there a plan would look better than it
            is.
        expansions: graphs whose candidates were listed.
        seconds: of the search, on the wall clock.
        is_exhausted: whether there was nothing left to expand.
    """

    progress: list[tuple[int, float, float]]
    scored: list[tuple[int, float]]
    expansions: int
    seconds: float
    is_exhausted: bool

    @property
    def gain(self) -> float:
        """Share of the predicted time that is saved in the end."""
        return self.scored[-1][1]

    def is_cut(self, steps: int) -> bool:
        """Whether the clock ended it, with fewer than `steps` expansions, while there was something left."""
        return not self.is_exhausted and self.expansions < steps

    def gain_at(self, expansions: int) -> float:
        """Share that was saved after so many expansions, or at the last time before that was scored."""
        return max((each for each in self.scored if each[0] <= expansions), default=(0, 0.0))[1]

    @property
    def found_at(self) -> int:
        """Expansions before the best graph."""
        least = self.progress[-1][2]
        return next(at for at, _, cost in self.progress if cost <= least * (1 + 1e-9))


@dataclasses.dataclass(frozen=True)
class SearchRun(Run[Found]):
    """See `Run`.

    Attributes:
        graph: of `graphs_of_paper.GRAPHS`.
        searcher: of the core.
        steps: most expansions.
        alpha: of the searcher "taso".
        rules: of `libraries.TITLES`.
        executor: whose prices.
        seed: of the prices' disturbance; 0 for none.
    """

    graph: str
    searcher: str
    steps: int
    alpha: float = 1.05
    rules: str = OURS
    executor: str = "eager"
    seed: int = 0

    @property
    def name(self) -> str:
        """See `Run`."""
        how = f"{self.searcher}{self.alpha:g}" if self.searcher == "taso" else self.searcher
        where = f"{self.executor}-seed{self.seed}-{library(self.rules).hash[:8]}"
        return f"search-{self.graph}-{how}-{self.steps}-{self.rules}-{where}"

    @property
    def beside(self) -> str:
        """See `Run`."""
        return f"{NOISE} {BUDGETS} {typical_prices(self.executor).to_json()}"

    def make(self, tell: Callable[[], None]) -> Found:
        """See `Run`."""
        found = self.search(self.steps)
        end = (found["expansions"], found["seconds"], found["cost_after_us"])
        budgets = [each for each in BUDGETS if each < self.steps]
        scored = [(each, self._gain(self.search(each)["graph"])) for each in budgets]
        tell()
        return Found(
            [*map(tuple, found["progress"]), end],
            [*scored, (self.steps, self._gain(found["graph"]))],
            found["expansions"],
            found["seconds"],
            found["exhausted"],
        )

    def _gain(self, graph: _C.Graph) -> float:
        cost = prices(self.executor, 0)
        before, after = (cost.metrics(each)["time_us"] for each in (graph_of(self.graph), graph))
        return 1 - float(after) / float(before)

    def search(self, steps: int) -> dict[str, Any]:
        """What the core gives back after at most so many expansions."""
        return _C.search(
            graph_of(self.graph),
            library(self.rules),
            prices(self.executor, self.seed),
            searcher=self.searcher,
            budget_ms=_PATIENCE_MS,
            budget_steps=steps,
            alpha=self.alpha,
        )

    def read(self, kept: Mapping[str, Any]) -> Found:
        """See `Run`."""
        progress = [(int(at), seconds, cost) for at, seconds, cost in kept["progress"]]
        scored = [(int(at), gain) for at, gain in kept["scored"]]
        return Found(**{**kept, "progress": progress, "scored": scored})
