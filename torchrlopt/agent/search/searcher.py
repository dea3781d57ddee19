"""The agent's search: an initial plan by the core, then episodes that the networks play from it."""

from __future__ import annotations

import abc
import dataclasses
import logging

from torchrlopt import _C
from torchrlopt.agent.checkpoint import Agent
from torchrlopt.agent.search.drawn_episodes import DrawnEpisodes
from torchrlopt.agent.search.explorer import Found
from torchrlopt.agent.search.first_plan import first_plan
from torchrlopt.agent.undisturbed_torch import undisturbed_torch
from torchrlopt.machine.contention import own_time
from torchrlopt.options import SearchOptions
from torchrlopt.plan import search
from torchrlopt.plan.search import Plan

logger = logging.getLogger("torchrlopt")

#: Early stopping: network expansions without improvement, per second of budget. On 24 held-out graphs, three
#: times as many found nothing more.
PATIENCE = 80
#: Episodes that the networks play in parallel: from the graph, the end of the plan, and its middle.
EPISODES = 4


class GuidedSearcher(abc.ABC):
    """See `torchrlopt.plan.search.Searcher`. A subclass says how networks explore.

    Args:
        name: searcher name recorded in plans.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @abc.abstractmethod
    def explore(
        self,
        graph: _C.Graph,
        library: _C.Library,
        cost: _C.CostModel,
        options: SearchOptions,
        first: Plan,
        deadline: float,
    ) -> Found:
        """Improve a plan.

        Args:
            graph: the graph to optimise.
            library: the substitutions.
            cost: the cost model.
            options: as given to `search`.
            first: the initial plan; its expansions count.
            deadline: `own_time()` at the end.
        """

    def search(
        self, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: SearchOptions
    ) -> Plan:
        """Return a plan that costs no more than the greedy plan.

        If the networks fail, it is the initial plan, unless `on_error="raise"`.
        """
        begin = own_time()
        deadline = begin + options.budget_ms / 1000
        first = first_plan(begin, graph, library, cost, options)
        try:
            with undisturbed_torch():
                found = self.explore(graph, library, cost, options, first, deadline)
            is_first = found.steps == list(first.steps)
            best = first if is_first else _plan_of(found, graph, library, cost)
            curve = (*first.curve, *((at - begin, cost_ms) for at, cost_ms in found.curve))
        except Exception as error:
            if options.on_error == "raise":
                raise
            logger.warning("the agent failed, greedy and local search are used instead: %s", error)
            return dataclasses.replace(first, is_exhausted=False, seconds=own_time() - begin)
        return dataclasses.replace(
            best,
            searcher=self._name,
            expansions=first.expansions + found.expansions,
            candidates=first.candidates + found.candidates,
            is_exhausted=found.is_exhausted and not found.is_cut,
            seconds=own_time() - begin,
            curve=curve,
        )


class AgentSearcher(GuidedSearcher):
    """The agent's search.

    Args:
        agent: the networks; an untrained agent serves as a control.
        name: searcher name recorded in plans.
    """

    def __init__(self, agent: Agent, name: str = "agent") -> None:
        super().__init__(name)
        self._network = agent.network

    def explore(
        self,
        graph: _C.Graph,
        library: _C.Library,
        cost: _C.CostModel,
        options: SearchOptions,
        first: Plan,
        deadline: float,
    ) -> Found:
        """See `GuidedSearcher`: play episodes from the graph and from the plan's end and middle."""
        best = Found(first.cost_after_ms * 1000, list(first.steps))
        left = left_steps(options, first)
        if own_time() >= deadline or left is None:
            return best
        own = dataclasses.replace(options.with_searcher("greedy"), beam_width=EPISODES, budget_steps=left)
        found = DrawnEpisodes(self._network, graph, library, cost, own).run(
            best, deadline, patience_of(options)
        )
        found.curve.append((own_time(), found.cost_us / 1000))
        return found


def left_steps(options: SearchOptions, first: Plan) -> int | None:
    """Return the expansions left after the initial plan, 0 if there is no limit, None if there are none."""
    if options.budget_steps == 0:
        return 0
    left = options.budget_steps - first.expansions
    return left if left > 0 else None


def patience_of(options: SearchOptions) -> int:
    """Return the number of expansions without improvement after which networks stop."""
    return max(1, round(PATIENCE * options.budget_ms / 1000))


def _plan_of(found: Found, graph: _C.Graph, library: _C.Library, cost: _C.CostModel) -> Plan:
    """Build the plan; the steps are replayed to get the intermediate costs."""
    _, before_ms, costs_ms = search.follow(graph, library, cost, found.steps)
    return Plan(
        graph_hash=search.graph_hash(graph),
        library_hash=library.hash,
        steps=tuple(found.steps),
        costs_ms=costs_ms,
        cost_before_ms=before_ms,
        searcher="",
        expansions=0,
        candidates=0,
        is_exhausted=False,
        seconds=0.0,
        found_by="networks",
    )
