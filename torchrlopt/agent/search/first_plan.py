"""The initial plan for the networks, found by the core's searches, whose expansions are cheap.

Greedy search, greedy search with chains, then iterated local search on the parts of the graph and on the
whole graph, from the cheapest plan so far.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torchrlopt import _C
from torchrlopt.agent.search.explorer import SMALLEST_GAIN
from torchrlopt.machine.contention import own_time
from torchrlopt.options import MAX_BUDGET_MS, SearchOptions
from torchrlopt.plan import search
from torchrlopt.plan.search import Plan

#: Multiple of the budget that greedy search may take: on a busy machine, the same steps take up to twice the
#: time, and a plan that was cut short cost up to 1.5 times as much (mobileone_s0).
GREEDY_BUDGETS = 3.0
#: Fraction of the budget left by greedy with chains, for iterated local search.
LOCAL_SHARE = 0.7
#: Early stopping of iterated local search: expansions without improvement, per second of budget.
PATIENCE = 4000


class SearcherWithoutAgent:
    """The initial plan alone: the fallback if no agent can be loaded."""

    def search(
        self, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: SearchOptions
    ) -> Plan:
        """See `torchrlopt.plan.search.Searcher`."""
        return first_plan(own_time(), graph, library, cost, options)


def first_plan(
    begin: float, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: SearchOptions
) -> Plan:
    """Return the cheapest plan of the three searches; ties go to the earliest.

    Args:
        begin: `own_time()` at the start of the budget.
        graph: the graph to optimise.
        library: the substitutions.
        cost: the cost model.
        options: budgets, seed and numerics.

    Returns:
        A plan with the combined counters and curve of all three.
    """
    patient = dataclasses.replace(options, budget_ms=min(GREEDY_BUDGETS * options.budget_ms, MAX_BUDGET_MS))
    best = _classic("greedy", graph, library, cost, patient)
    # Chains terminate by themselves and may use the whole budget: otherwise the result could cost more than
    # that of "chains" in the same time.
    for name, share in (("chains", 1.0), ("local", LOCAL_SHARE)):
        left = left_of(options, begin, best.expansions, share)
        if left is None:
            break
        patience = max(1, round(PATIENCE * options.budget_ms / 1000))
        found = _classic(name, graph, library, cost, left, patience=patience, first=best.steps)
        is_cheaper = found.cost_after_ms < best.cost_after_ms * (1 - SMALLEST_GAIN)
        cheapest = found if is_cheaper else best
        best = dataclasses.replace(
            cheapest,
            curve=(*best.curve, (own_time() - begin, cheapest.cost_after_ms)),
            expansions=best.expansions + found.expansions,
            candidates=best.candidates + found.candidates,
            is_exhausted=best.is_exhausted and found.is_exhausted,
        )
    return dataclasses.replace(best, seconds=own_time() - begin)


def left_of(
    options: SearchOptions, begin: float, expansions: int, share: float = 1.0
) -> SearchOptions | None:
    """Return the options with a share of the remaining budgets, or None if nothing remains.

    Args:
        options: budget_ms and budget_steps.
        begin: `own_time()` at the start of the budget.
        expansions: number of expansions since.
        share: fraction of both budgets.
    """
    left_ms = share * (options.budget_ms - (own_time() - begin) * 1000)
    left_steps = int(share * (options.budget_steps - expansions))
    if left_ms <= 0 or (options.budget_steps > 0 and left_steps < 1):
        return None
    return dataclasses.replace(options, budget_ms=left_ms, budget_steps=max(0, left_steps))


def _classic(
    name: str,
    graph: _C.Graph,
    library: _C.Library,
    cost: _C.CostModel,
    options: SearchOptions,
    *,
    patience: int = 0,
    first: Sequence[tuple[str, int]] = (),
) -> Plan:
    return search.ClassicSearcher(name, patience, first).search(graph, library, cost, options)
