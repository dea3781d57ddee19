"""What the searches that networks guide have in common.

They play episodes on one graph until the time is nearly over, or nothing new was found for long. Greedy then
goes on from where they ended, and the cheapest graph that was seen on the way is the result.
"""

from __future__ import annotations

import abc
import dataclasses
import functools

from torchrlopt import _C
from torchrlopt.env import Observer
from torchrlopt.machine.contention import own_time
from torchrlopt.options import Options

POLISH_SHARE = 0.2  # of the time, kept for greedy at the end
MAX_STEPS = 10**9  # no limit; an episode in which nothing is done counts a step all the same
SMALLEST_GAIN = 1e-9  # relative: a smaller difference of costs is rounding
MAX_EARLIER = 4
Steps = list[tuple[str, int]]


@dataclasses.dataclass
class Found:
    """The best that a guided search has seen.

    Attributes:
        cost_us: predicted time of the cheapest graph.
        steps: that lead to it.
        earlier: (cost, steps) of the plans that were the cheapest ones before this, the last few.
        curve: (`time.perf_counter()`, cost in milliseconds) as the search went on, where that was noted.
        expansions: graphs whose candidates were listed.
        candidates: graphs that were priced.
        is_exhausted: nothing was left to try.
        is_cut: something was left out that a wider search would try.
        gained_at: expansions when it became cheaper last, and those of greedy since; negative for so many
            before this exploration.
    """

    cost_us: float
    steps: Steps
    earlier: list[tuple[float, Steps]] = dataclasses.field(default_factory=list)
    curve: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    expansions: int = 0
    candidates: int = 0
    is_exhausted: bool = False
    is_cut: bool = False
    gained_at: int = 0

    @property
    def idle(self) -> int:
        """Expansions since the plan became cheaper, but for those of greedy."""
        return self.expansions - self.gained_at

    def note(self, cost_us: float, steps: Steps) -> None:
        """Keep a plan if it is cheaper."""
        if cost_us < self.cost_us * (1 - SMALLEST_GAIN):
            self.earlier = [*self.earlier, (self.cost_us, self.steps)][-MAX_EARLIER:]
            self.cost_us, self.steps = cost_us, steps
            self.gained_at = self.expansions


class Explorer(abc.ABC):
    """Episodes over one graph, in which networks choose the steps.

    Args:
        graph: what to make faster.
        library: the substitutions.
        cost: prices.
        options: budget_steps and numerics.
        num_envs: episodes.
        has_macros: whether one action may apply a substitution at a whole class of symmetric locations.
    """

    def __init__(
        self,
        graph: _C.Graph,
        library: _C.Library,
        cost: _C.CostModel,
        options: Options,
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
        self._observer = Observer(self._env)

    def _may_expand(self, count: int, found: Found) -> bool:
        """Whether so many graphs more are within the limit of expansions and the patience."""
        return found.expansions + count <= self._max_expansions and found.idle < self._patience

    @abc.abstractmethod
    def explore(self, plan: Steps, found: Found, deadline: float) -> list[int]:
        """Play until the deadline, the limit of expansions, or until nothing is left.

        Args:
            plan: a good one, to begin from too.
            found: is kept up to date.
            deadline: `own_time()` at the end.

        Returns:
            Episodes whose graphs are worth going on from.
        """

    def run(self, best: Found, deadline: float, patience: int) -> Found:
        """Explore, then let greedy go on from the last graphs: obvious steps need no network.

        Args:
            best: the cheapest plan so far: the exploration begins from it too, and finds what is cheaper.
            deadline: `own_time()` at the end.
            patience: expansions, but for greedy's, that may bring nothing.
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
