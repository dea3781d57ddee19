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
        before_us: predicted time of the graph.
        progress: (expansions, seconds, predicted time of the best graph) at each time that it fell, and at
            the end.
        expansions: graphs whose candidates were listed.
        seconds: of the search, on the wall clock.
        is_exhausted: whether there was nothing left to expand.
    """

    before_us: float
    progress: list[tuple[int, float, float]]
    expansions: int
    seconds: float
    is_exhausted: bool

    @property
    def after_us(self) -> float:
        """Predicted time of the best graph."""
        return self.progress[-1][2]

    @property
    def gain(self) -> float:
        """Share of the predicted time that is saved."""
        return 1 - self.after_us / self.before_us

    def gain_at(self, expansions: int) -> float:
        """Share that was saved after so many expansions."""
        best = self.before_us
        for at, _, cost in self.progress:
            if at > expansions:
                break
            best = cost
        return 1 - best / self.before_us

    @property
    def found_at(self) -> int:
        """Expansions before the best graph."""
        return next(at for at, _, cost in self.progress if cost <= self.after_us * (1 + 1e-9))


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
        return f"{NOISE} {typical_prices(self.executor).to_json()}"

    def make(self, tell: Callable[[], None]) -> Found:
        """See `Run`."""
        found = self.search()
        end = (found["expansions"], found["seconds"], found["cost_after_us"])
        tell()
        return Found(
            found["cost_before_us"],
            [*map(tuple, found["progress"]), end],
            found["expansions"],
            found["seconds"],
            found["exhausted"],
        )

    def search(self) -> dict[str, Any]:
        """What the core gives back."""
        return _C.search(
            graph_of(self.graph),
            library(self.rules),
            prices(self.executor, self.seed),
            searcher=self.searcher,
            budget_ms=_PATIENCE_MS,
            budget_steps=self.steps,
            alpha=self.alpha,
        )

    def read(self, kept: Mapping[str, Any]) -> Found:
        """See `Run`."""
        return Found(**{**kept, "progress": [(int(at), s, cost) for at, s, cost in kept["progress"]]})
