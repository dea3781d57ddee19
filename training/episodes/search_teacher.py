"""Example plans from the core's searches: the best plan found within a number of expansions.

The row "plan" uses four searches in two rounds; "gumbel" uses iterated local search, which is better.

Sampling rarely finds a sequence that raises the cost for several steps before it pays off. A search does; its
plan becomes one of the episodes of the graph. The limit is a number of expansions rather than a time, so that
every process finds the same plan.
"""

from __future__ import annotations

from typing import Any

from torchrlopt import _C

_NO_LIMIT_MS = 1e12
#: The searches and their share of a round's expansions; greedy finishes long before its limit.
_SEARCHES: tuple[tuple[dict[str, Any], float], ...] = (
    ({"searcher": "greedy"}, 0.5),
    ({"searcher": "beam", "beam_width": 6}, 0.15),
    ({"searcher": "taso", "alpha": 1.1}, 0.15),
    ({"searcher": "annealing"}, 0.2),
)
_ROUNDS = 2  # the second starts from the best plan of the first


def best_steps(
    graph: _C.Graph, library: _C.Library, cost: _C.CostModel, expansions: int, max_length: int, seed: int
) -> list[tuple[str, int]]:
    """Steps of the cheapest plan; empty if no search lowered the cost.

    Args:
        graph: where the plan starts.
        library: the substitutions.
        cost: prices.
        expansions: limit for all searches together.
        max_length: maximum number of steps in the plan.
        seed: of the randomised searches.
    """
    steps: list[tuple[str, int]] = []
    for number in range(_ROUNDS):
        if len(steps) >= max_length:
            break
        found = [
            _C.search(
                graph,
                library,
                cost,
                budget_ms=_NO_LIMIT_MS,
                budget_steps=max(1, round(part * expansions / _ROUNDS)),
                max_length=max_length - len(steps),
                seed=seed + number,
                **settings,
            )
            for settings, part in _SEARCHES
        ]
        best = min(found, key=lambda each: float(each["cost_after_us"]))
        steps += [(str(name), int(location)) for name, location in best["steps"]]
        graph = best["graph"]
    return steps


def iterated_steps(
    graph: _C.Graph, library: _C.Library, cost: _C.CostModel, expansions: int, max_length: int, seed: int
) -> list[tuple[str, int]]:
    """Steps of the plan found by iterated local search; see `best_steps` for the arguments."""
    found = _C.search(
        graph,
        library,
        cost,
        searcher="iterated",
        budget_ms=_NO_LIMIT_MS,
        budget_steps=expansions,
        max_length=max_length,
        seed=seed,
    )
    return [(str(name), int(location)) for name, location in found["steps"]]
