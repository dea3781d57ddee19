"""Plans of the core's searches as examples: the best one that they find within a number of expansions.

The row "plan" was made with four searches in two rounds; "gumbel" has iterated local search, which is better.

Sampling seldom finds a chain that loses for several steps before it wins. A search does; its plan becomes one
of the episodes of the graph. The limit is a number of expansions, not a time, so that every process finds the
same plan.
"""

from __future__ import annotations

from typing import Any

from torchrlopt import _C

_NO_LIMIT_MS = 1e12
#: What searches, and with which part of the expansions of a round; greedy ends by itself long before.
_SEARCHES: tuple[tuple[dict[str, Any], float], ...] = (
    ({"searcher": "greedy"}, 0.5),
    ({"searcher": "beam", "beam_width": 6}, 0.15),
    ({"searcher": "taso", "alpha": 1.1}, 0.15),
    ({"searcher": "annealing"}, 0.2),
)
_ROUNDS = 2  # the second one begins where the best plan of the first one ended


def best_steps(
    graph: _C.Graph, library: _C.Library, cost: _C.CostModel, expansions: int, max_length: int, seed: int
) -> list[tuple[str, int]]:
    """Steps of the cheapest plan; none where no search found one that saves.

    Args:
        graph: where the plan begins.
        library: the substitutions.
        cost: prices.
        expansions: of all searches together, at most.
        max_length: most steps of the plan.
        seed: of what walks at random.
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
    """Steps of the plan that iterated local search finds; see `best_steps` for the arguments."""
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
