"""Base of the searches that are guided by networks.

They play episodes on one graph until the time is nearly over or early stopping triggers. Greedy search then
continues from the final graphs, and the cheapest graph seen is the result.
"""

from __future__ import annotations

import abc
import dataclasses
import functools

from torchrlopt import _C
from torchrlopt.machine.contention import own_time
from torchrlopt.options import SearchOptions

POLISH_SHARE = 0.2  # fraction of the time reserved for greedy at the end
MAX_STEPS = 10**9  # effectively no limit; an idle episode still counts steps
SMALLEST_GAIN = 1e-9  # relative; smaller cost differences are rounding errors
Steps = list[tuple[str, int]]


@dataclasses.dataclass
class Found:
    """The best result of a guided search so far.

    Attributes:
        cost_us: predicted time of the cheapest graph.
        steps: steps that produce it.
        curve: (`time.perf_counter()`, cost in milliseconds) over the course of the search, if recorded.
        expansions: number of graphs whose candidates were enumerated.
        candidates: number of graphs that were priced.
        is_exhausted: whether nothing was left to try.
        is_cut: whether something was skipped that a wider search would try.
        gained_at: number of expansions at the last improvement, plus those of greedy since; negative if the
            last improvement was before this exploration.
    """

    cost_us: float
    steps: Steps
    curve: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    expansions: int = 0
    candidates: int = 0
    is_exhausted: bool = False
    is_cut: bool = False
    gained_at: int = 0

    @property
    def idle(self) -> int:
        """Number of expansions since the last improvement, except those of greedy."""
        return self.expansions - self.gained_at

    def note(self, cost_us: float, steps: Steps) -> None:
        """Keep a plan if it is cheaper."""
        if cost_us < self.cost_us * (1 - SMALLEST_GAIN):
            self.cost_us, self.steps = cost_us, steps
            self.gained_at = self.expansions


class Explorer(abc.ABC):
    """Episodes on one graph in which networks choose the steps.

    Args:
        graph: the graph to optimise.
        library: the substitutions.
        cost: the cost model.
        options: budget_steps and numerics.
        num_envs: number of parallel episodes.
        has_macros: whether one action may apply a substitution at a whole class of symmetric locations.
    """

    def __init__(
        self,
        graph: _C.Graph,
        library: _C.Library,
        cost: _C.CostModel,
        options: SearchOptions,
        *,
        num_envs: int,
        has_macros: bool,
    ) -> None:
        exact_only = options.numerics == "strict"
        self._greedy = functools.partial(
            _C.search, library=library, cost=cost, searcher="greedy", exact_only=exact_only
        )
        self._max_expansions = options.budget_steps or 2**62
        self._patience = 2**62
        self._env = _C.VecRewriteEnv(
            [graph],
            library,
            cost,
            num_envs=num_envs,
            max_steps=MAX_STEPS,
            has_macros=has_macros,
            exact_only=exact_only,
        )

    def _may_expand(self, count: int, found: Found) -> bool:
        """Whether `count` more expansions are within the limit and the patience."""
        return found.expansions + count <= self._max_expansions and found.idle < self._patience

    @abc.abstractmethod
    def explore(self, plan: Steps, found: Found, deadline: float) -> list[int]:
        """Play until the deadline, the limit of expansions, or exhaustion.

        Args:
            plan: a good plan, used as an additional start.
            found: updated in place.
            deadline: `own_time()` at the end.

        Returns:
            Episodes whose graphs are worth continuing from.
        """

    def run(self, best: Found, deadline: float, patience: int) -> Found:
        """Explore, then continue greedily from the final graphs: obvious steps need no network.

        Args:
            best: the best plan so far, used as an additional start; only cheaper plans are recorded.
            deadline: `own_time()` at the end.
            patience: early stopping: number of expansions, except greedy's, without improvement.
        """
        self._patience = patience
        found = Found(best.cost_us, best.steps, gained_at=-best.idle)
        now = own_time()
        ends = self.explore(list(best.steps), found, deadline - POLISH_SHARE * max(0.0, deadline - now))
        for slot in ends:
            left_ms = (deadline - own_time()) * 1000
            left_steps = self._max_expansions - found.expansions
            if left_ms <= 0 or left_steps <= 0:
                break
            after = self._greedy(self._env.graph(slot), budget_ms=left_ms, budget_steps=left_steps)
            found.expansions += after["expansions"]
            found.gained_at += after["expansions"]
            found.candidates += after["candidates"]
            found.note(after["cost_after_us"], [*self._env.steps(slot), *after["steps"]])
        return found
