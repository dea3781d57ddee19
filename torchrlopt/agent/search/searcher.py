"""Agent-guided search: an initial plan by the core, then explorations guided by the networks.

Each exploration is twice as wide as the previous one and may start from the best plan so far.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Sequence

from torchrlopt import _C
from torchrlopt.agent.checkpoint import Agent
from torchrlopt.agent.latency import parts_of
from torchrlopt.agent.search.drawn_episodes import DrawnEpisodes
from torchrlopt.agent.search.explorer import Explorer, Found
from torchrlopt.agent.search.first_plan import first_plan, greedy_plan, with_beam
from torchrlopt.agent.search.guided_beam import GuidedBeam
from torchrlopt.agent.undisturbed_torch import undisturbed_torch
from torchrlopt.agent.world.latent_controller import LatentController
from torchrlopt.machine.contention import own_time
from torchrlopt.options import SearchOptions
from torchrlopt.plan import search
from torchrlopt.plan.search import Plan

logger = logging.getLogger("torchrlopt")

#: Early stopping: network expansions without improvement, per second of budget. On 24 held-out graphs, three
#: times as many found nothing more.
PATIENCE = 80
FIRST_WIDTH = 1  # with a small budget, only a narrow search reaches the end of a long plan
MAX_WIDTH = 64
#: Weight of the predicted further improvement relative to the likelihood of the steps, alternating between
#: explorations. The larger weight makes the search deviate from steps that the policy is confident but wrong
#: about.
VALUE_WEIGHTS = (20.0, 60.0)


class AgentSearcher:
    """See `torchrlopt.plan.search.Searcher`.

    Args:
        agent: the networks; an untrained agent serves as a control.
        name: searcher name recorded in plans.
        value_weights: see `VALUE_WEIGHTS`.
    """

    def __init__(
        self,
        agent: Agent,
        name: str = "agent",
        value_weights: Sequence[float] = VALUE_WEIGHTS,
    ) -> None:
        self._agent = agent
        self._name = name
        self._value_weights = tuple(value_weights)

    def search(
        self, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: SearchOptions
    ) -> Plan:
        """Return a plan that costs no more than the greedy plan.

        If the networks fail, fall back to the core's beam search, unless `on_error="raise"`.
        """
        begin = own_time()
        deadline = begin + options.budget_ms / 1000
        first = first_plan(begin, graph, library, cost, options)
        try:
            with undisturbed_torch():
                found = self._explore(graph, library, cost, options, first, deadline)
                self._choose(found, graph, library, cost)
            is_first = found.steps == list(first.steps)
            best = first if is_first else _plan_of(found, graph, library, cost)
            curve = (*first.curve, *((at - begin, cost_ms) for at, cost_ms in found.curve))
        except Exception as error:
            if options.on_error == "raise":
                raise
            logger.warning("the agent failed, greedy and beam are used instead: %s", error)
            return with_beam(first, begin, graph, library, cost, options)
        return dataclasses.replace(
            best,
            searcher=self._name,
            expansions=first.expansions + found.expansions,
            candidates=first.candidates + found.candidates,
            is_exhausted=found.is_exhausted and not found.is_cut,
            seconds=own_time() - begin,
            curve=curve,
        )

    def _choose(self, found: Found, graph: _C.Graph, library: _C.Library, cost: _C.CostModel) -> None:
        """Choose the plan with the lowest predicted latency among the last few best plans."""
        latency = self._agent.latency
        if latency is None or not found.earlier:
            return
        plans = [*found.earlier, (found.cost_us, found.steps)]
        expected = [
            latency.latency_us(parts_of(_C.replay(graph, library, steps), cost)) for _, steps in plans
        ]
        # Ties go to the cheaper plan, which is the later one.
        fastest = min(range(len(plans)), key=lambda i: (expected[i], -i))
        found.cost_us, found.steps = plans[fastest]

    def _explore(
        self,
        graph: _C.Graph,
        library: _C.Library,
        cost: _C.CostModel,
        options: SearchOptions,
        first: Plan,
        deadline: float,
    ) -> Found:
        """Run successive explorations, each twice as wide and from the best plan so far."""
        best = Found(first.cost_after_ms * 1000, list(first.steps))
        left_steps = options.budget_steps - first.expansions
        patience = max(1, round(PATIENCE * options.budget_ms / 1000))
        own = dataclasses.replace(options.with_searcher("greedy"), beam_width=FIRST_WIDTH)
        weights = itertools.cycle(self._value_weights)
        while own.beam_width <= MAX_WIDTH:
            is_out = own_time() >= deadline or (options.budget_steps > 0 and left_steps <= 0)
            if is_out or best.idle >= patience:
                best.is_exhausted = False
                break
            own = dataclasses.replace(own, budget_steps=left_steps if options.budget_steps else 0)
            found = self._explorer(graph, library, cost, own, next(weights)).run(best, deadline, patience)
            best.note(found.cost_us, found.steps)
            best.gained_at = best.expansions + found.gained_at
            best.curve.append((own_time(), best.cost_us / 1000))
            best.expansions += found.expansions
            best.candidates += found.candidates
            best.is_exhausted, best.is_cut = found.is_exhausted, found.is_cut
            left_steps -= found.expansions
            if not found.is_exhausted or not found.is_cut:
                break
            own = dataclasses.replace(own, beam_width=2 * own.beam_width)
        return best

    def _explorer(
        self,
        graph: _C.Graph,
        library: _C.Library,
        cost: _C.CostModel,
        options: SearchOptions,
        value_weight: float,
    ) -> Explorer:
        controller = self._agent.controller
        if not isinstance(controller, LatentController):
            return GuidedBeam(controller, graph, library, cost, options, value_weight)
        return DrawnEpisodes(controller, graph, library, cost, options)


class SearcherWithoutAgent:
    """Greedy, then beam with the rest of the budget: the fallback if no agent can be loaded."""

    def search(
        self, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: SearchOptions
    ) -> Plan:
        """See `torchrlopt.plan.search.Searcher`."""
        begin = own_time()
        greedy = greedy_plan(graph, library, cost, options)
        return with_beam(greedy, begin, graph, library, cost, options)


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
