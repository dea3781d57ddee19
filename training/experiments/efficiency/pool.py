"""Graphs that a search by price visits: what rows choose from that measure in an order of their own."""

from __future__ import annotations

import heapq
import itertools

from torchrlopt import _C
from training.experiments.asking.space import Around, Space, Steps
from training.graphs.fingerprint import fingerprint

EXPANSIONS = 30_000  # of the searches whose plans the pool is built around
_NO_LIMIT_MS = 1e9
_SEARCHERS = ("iterated", "greedy")


def pool(graph: _C.Graph, library: _C.Library, cost: _C.CostModel, size: int) -> Space:
    """Distinct graphs around the cheapest ones, the first among them; `next` of the space is empty.

    Best-first search by price, which begins at every graph on the way of two plans, and takes single steps.

    Args:
        graph: the first one.
        library: the substitutions.
        cost: prices.
        size: most graphs.
    """
    around = Around(graph, library, cost)
    known: dict[str, tuple[_C.Graph, Steps]] = {}
    frontier: list[tuple[float, int, Steps]] = []
    order = itertools.count()  # of what costs the same, the first is the first

    def add(found: _C.Graph, steps: Steps) -> None:
        key = fingerprint(found)
        if key not in known and len(known) < size:
            known[key] = found, steps
            heapq.heappush(frontier, (float(cost.metrics(found)["time_us"]), next(order), steps))

    add(graph, [])
    for searcher in _SEARCHERS:
        plan: Steps = _C.search(
            graph, library, cost, searcher=searcher, budget_ms=_NO_LIMIT_MS, budget_steps=EXPANSIONS
        )["steps"]
        for length in reversed(range(len(plan) + 1)):  # the ends first, for which there is always room
            add(_C.replay(graph, library, plan[:length]), plan[:length])
    while frontier and len(known) < size:
        _, _, steps = heapq.heappop(frontier)
        for found, taken in around.after(steps):
            add(found, taken)
    graphs, steps_to = zip(*known.values(), strict=True)
    return Space(list(graphs), list(steps_to), [])
