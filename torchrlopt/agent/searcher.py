"""The search that an agent guides: greedy first, then what its networks suggest."""

from __future__ import annotations

import dataclasses
import logging
import time

from torchrlopt import _C, search
from torchrlopt.agent.beam import Beam
from torchrlopt.agent.checkpoint import Agent
from torchrlopt.agent.controller import CandidateController
from torchrlopt.agent.exploring import SMALLEST_GAIN, Explorer, Found
from torchrlopt.agent.quiet import undisturbed_torch
from torchrlopt.agent.rollouts import Rollouts
from torchrlopt.errors import RlOptError
from torchrlopt.options import Options
from torchrlopt.search import Plan

logger = logging.getLogger("torchrlopt")

GREEDY_SHARE = 0.4  # of the budget, at most


class AgentSearcher:
    """See `torchrlopt.search.Searcher`.

    Args:
        agent: the networks; an untrained one makes the control of a comparison.
        name: what plans are signed with.
        value_weight: how much the predicted further improvement counts against the likelihood of the steps.
    """

    def __init__(self, agent: Agent, name: str = "agent", value_weight: float = 20.0) -> None:
        self._agent = agent
        self._name = name
        self._value_weight = value_weight

    def search(self, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: Options) -> Plan:
        """Greedy's plan, or a cheaper one. If the networks fail, the core's beam takes over."""
        begin = time.perf_counter()
        greedy = _classic(
            graph, library, cost, options, searcher="greedy", budget_ms=options.budget_ms * GREEDY_SHARE
        )
        deadline = begin + options.budget_ms / 1000
        best = greedy
        try:
            with undisturbed_torch():
                found = self._explorer(graph, library, cost, options).run(greedy.steps, deadline)
            if found.cost_us < greedy.cost_after_ms * 1000 * (1 - SMALLEST_GAIN):
                best = _plan_of(found, graph, library, cost, options)
            expansions = greedy.expansions + found.expansions
            candidates = greedy.candidates + found.candidates
            is_exhausted = greedy.is_exhausted and found.is_exhausted
        except (RlOptError, RuntimeError, IndexError) as error:
            logger.warning("the agent failed, greedy and beam are used instead: %s", error)
            return _with_beam(greedy, begin, graph, library, cost, options)
        return dataclasses.replace(
            best,
            searcher=self._name,
            expansions=expansions,
            candidates=candidates,
            is_exhausted=is_exhausted,
            seconds=time.perf_counter() - begin,
        )

    def _explorer(
        self, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: Options
    ) -> Explorer:
        controller = self._agent.controller
        if isinstance(controller, CandidateController):
            return Beam(controller, graph, library, cost, options, self._value_weight)
        return Rollouts(controller, graph, library, cost, options)


def search_without_agent(graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: Options) -> Plan:
    """Greedy, then beam with the rest of the budget: what is left where no agent can be had."""
    begin = time.perf_counter()
    greedy = _classic(
        graph, library, cost, options, searcher="greedy", budget_ms=options.budget_ms * GREEDY_SHARE
    )
    return _with_beam(greedy, begin, graph, library, cost, options)


def _with_beam(
    greedy: Plan,
    begin: float,
    graph: _C.Graph,
    library: _C.Library,
    cost: _C.CostModel,
    options: Options,
) -> Plan:
    left_ms = max(0.0, options.budget_ms - (time.perf_counter() - begin) * 1000)
    beam = _classic(graph, library, cost, options, searcher="beam", budget_ms=left_ms)
    best = min(greedy, beam, key=lambda plan: plan.cost_after_ms)
    return dataclasses.replace(
        best,
        expansions=greedy.expansions + beam.expansions,
        candidates=greedy.candidates + beam.candidates,
        is_exhausted=beam.is_exhausted,
        seconds=time.perf_counter() - begin,
    )


def _classic(
    graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: Options, **changes: object
) -> Plan:
    own = dataclasses.replace(options, agent=None, **changes)  # type: ignore[arg-type]
    return search.ClassicSearcher().search(graph, library, cost, own)


def _plan_of(
    found: Found, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: Options
) -> Plan:
    """Replays the steps for the costs in between."""
    state = _C.RewriteState(graph, library, cost, exact_only=options.numerics == "strict")
    before, costs = state.metrics["time_us"], []
    for name, location in found.steps:
        if not state.step(library.find(name), location):
            raise RlOptError("a step of the guided search cannot be replayed", got=(name, location))
        costs.append(state.metrics["time_us"] / 1000)
    return Plan(
        graph_hash=search.graph_hash(graph),
        library_hash=library.hash,
        steps=tuple(found.steps),
        costs_ms=tuple(costs),
        cost_before_ms=before / 1000,
        searcher="",
        expansions=0,
        candidates=0,
        is_exhausted=False,
        seconds=0.0,
    )
