"""The search that an agent guides: greedy first, then explorations that the agent's networks lead.

Each exploration is twice as wide as the one before, and may begin at the best plan so far.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Sequence

from torchrlopt import _C
from torchrlopt.agent.checkpoint import Agent
from torchrlopt.agent.latency import parts_of
from torchrlopt.agent.networks.candidate_controller import CandidateController
from torchrlopt.agent.search.drawn_episodes import DrawnEpisodes
from torchrlopt.agent.search.explorer import Explorer, Found
from torchrlopt.agent.search.guided_beam import GuidedBeam
from torchrlopt.agent.undisturbed_torch import undisturbed_torch
from torchrlopt.machine.contention import own_time
from torchrlopt.options import Options
from torchrlopt.plan import search
from torchrlopt.plan.search import Plan

logger = logging.getLogger("torchrlopt")

FIRST_WIDTH = 1  # within a small budget only a narrow search reaches the end of a long plan
MAX_WIDTH = 64
#: How much the predicted further improvement counts against the likelihood of the steps, in one exploration
#: after another. With the larger weight the search leaves steps that the policy is sure of, but wrong about.
VALUE_WEIGHTS = (20.0, 60.0)


class AgentSearcher:
    """See `torchrlopt.plan.search.Searcher`.

    Args:
        agent: the networks; an untrained one makes the control of a comparison.
        name: what plans are signed with.
        value_weights: see `VALUE_WEIGHTS`.
        partner: another agent, which leads every other exploration: it may find what the first overlooks.
    """

    def __init__(
        self,
        agent: Agent,
        name: str = "agent",
        value_weights: Sequence[float] = VALUE_WEIGHTS,
        partner: Agent | None = None,
    ) -> None:
        self._agent = agent
        self._name = name
        agents = [agent] if partner is None else [agent, partner]
        self._turns = [(each, weight) for weight in value_weights for each in agents]

    def search(self, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: Options) -> Plan:
        """Greedy's plan, or a cheaper one.

        If the networks fail, the core's beam searches instead, unless the options ask for errors.
        """
        begin = own_time()
        greedy = _classic("greedy", graph, library, cost, options)
        deadline = begin + options.budget_ms / 1000
        try:
            with undisturbed_torch():
                found = self._explore(graph, library, cost, options, greedy, deadline)
                self._choose(found, graph, library, cost)
            is_greedy = found.steps == list(greedy.steps)
            best = greedy if is_greedy else _plan_of(found, graph, library, cost)
            curve = (*greedy.curve, *((at - begin, cost_ms) for at, cost_ms in found.curve))
        except Exception as error:
            if options.on_error == "raise":
                raise
            logger.warning("the agent failed, greedy and beam are used instead: %s", error)
            return _with_beam(greedy, begin, graph, library, cost, options)
        return dataclasses.replace(
            best,
            searcher=self._name,
            expansions=greedy.expansions + found.expansions,
            candidates=greedy.candidates + found.candidates,
            is_exhausted=greedy.is_exhausted and found.is_exhausted,
            seconds=own_time() - begin,
            curve=curve,
        )

    def _choose(self, found: Found, graph: _C.Graph, library: _C.Library, cost: _C.CostModel) -> None:
        """Among the last few best plans, the one that the learned latency model thinks fastest."""
        latency = self._agent.latency
        if latency is None or not found.earlier:
            return
        plans = [*found.earlier, (found.cost_us, found.steps)]
        expected = [
            latency.latency_us(parts_of(_C.replay(graph, library, steps), cost)) for _, steps in plans
        ]
        # Of equals the cheaper one, which is the later one.
        fastest = min(range(len(plans)), key=lambda i: (expected[i], -i))
        found.cost_us, found.steps = plans[fastest]

    def _explore(
        self,
        graph: _C.Graph,
        library: _C.Library,
        cost: _C.CostModel,
        options: Options,
        greedy: Plan,
        deadline: float,
    ) -> Found:
        """One exploration after another, each twice as wide and from the best plan so far."""
        best = Found(greedy.cost_after_ms * 1000, list(greedy.steps))
        left_steps = options.budget_steps - greedy.expansions
        own = dataclasses.replace(options.with_searcher("greedy"), beam_width=FIRST_WIDTH)
        turns = itertools.cycle(self._turns)
        while own.beam_width <= MAX_WIDTH:
            is_over = own_time() >= deadline or (options.budget_steps > 0 and left_steps <= 0)
            if is_over:
                best.is_exhausted = False
                break
            own = dataclasses.replace(own, budget_steps=left_steps if options.budget_steps else 0)
            found = self._explorer(graph, library, cost, own, *next(turns)).run(best.steps, deadline)
            best.note(found.cost_us, found.steps)
            best.curve.append((own_time(), best.cost_us / 1000))
            best.expansions += found.expansions
            best.candidates += found.candidates
            best.is_exhausted = found.is_exhausted
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
        options: Options,
        agent: Agent,
        value_weight: float,
    ) -> Explorer:
        controller = agent.controller
        if isinstance(controller, CandidateController):
            return GuidedBeam(controller, graph, library, cost, options, value_weight)
        return DrawnEpisodes(controller, graph, library, cost, options)


class SearcherWithoutAgent:
    """Greedy, then beam with the rest of the budget: used where no agent can be loaded."""

    def search(self, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: Options) -> Plan:
        """See `torchrlopt.plan.search.Searcher`."""
        begin = own_time()
        greedy = _classic("greedy", graph, library, cost, options)
        return _with_beam(greedy, begin, graph, library, cost, options)


def _with_beam(
    greedy: Plan,
    begin: float,
    graph: _C.Graph,
    library: _C.Library,
    cost: _C.CostModel,
    options: Options,
) -> Plan:
    left_ms = max(0.0, options.budget_ms - (own_time() - begin) * 1000)
    beam = _classic("beam", graph, library, cost, dataclasses.replace(options, budget_ms=left_ms))
    best = min(greedy, beam, key=lambda plan: plan.cost_after_ms)
    return dataclasses.replace(
        best,
        expansions=greedy.expansions + beam.expansions,
        candidates=greedy.candidates + beam.candidates,
        is_exhausted=beam.is_exhausted,
        seconds=own_time() - begin,
    )


def _classic(name: str, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: Options) -> Plan:
    return search.search(graph, library, cost, options.with_searcher(name))


def _plan_of(found: Found, graph: _C.Graph, library: _C.Library, cost: _C.CostModel) -> Plan:
    """The plan; the steps are taken once more for the costs in between."""
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
