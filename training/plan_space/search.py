"""The cheapest plans with and without a decision, and whether the decision is worth having."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchrlopt import _C

Steps = list[tuple[str, int]]

FOLDER = Path(__file__).parent / "decisions"
LEAST_GAIN = 0.02  # of time, below greedy with chains and below what is found without the decision
LEAST_SHARE = 0.2  # of the graphs of a family
_THOROUGH = ("restarts", "iterated")


def decisions() -> dict[str, str]:
    """The texts that are asked about, by name."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.txt"))}


@dataclasses.dataclass(frozen=True)
class Found:
    """What searches found for one graph, in microseconds by price.

    Attributes:
        decision: whose substitutions were added.
        family: of the graph.
        graph: its name.
        first_us: of the graph itself.
        chains_us: greedy search with chains.
        best_us: the cheapest plan without the decision.
        with_us: the cheapest with it, or that without.
        steps: of the decision in that plan.
    """

    decision: str
    family: str
    graph: str
    first_us: float
    chains_us: float
    best_us: float
    with_us: float
    steps: int

    @property
    def gain(self) -> float:
        """What the decision saves, as a share of the cheapest plan that there is without it."""
        return 1 - self.with_us / min(self.chains_us, self.best_us)

    @property
    def is_won(self) -> bool:
        """Whether the graph speaks for the decision."""
        return self.gain >= LEAST_GAIN


def is_admitted(found: Sequence[Found]) -> bool:
    """Whether enough graphs of one family speak for one decision."""
    return sum(each.is_won for each in found) >= LEAST_SHARE * len(found)


def cheapest(
    graph: _C.Graph, library: _C.Library, cost: _C.CostModel, seconds: float, first: Steps
) -> tuple[float, Steps]:
    """Microseconds and steps of the cheapest plan of several searches.

    Args:
        graph: what is planned.
        library: the substitutions.
        cost: prices.
        seconds: of each search.
        first: a plan to begin with.
    """
    best = (float(cost.metrics(_C.replay(graph, library, first))["time_us"]), first)
    for searcher in _THOROUGH:
        found = _C.search(graph, library, cost, searcher=searcher, budget_ms=1e3 * seconds, first=best[1])
        if found["cost_after_us"] < best[0]:
            best = float(found["cost_after_us"]), found["steps"]
    return best


def ask(
    family: str,
    name: str,
    graph: _C.Graph,
    libraries: Mapping[str, _C.Library],
    cost: _C.CostModel,
    seconds: float,
) -> list[Found]:
    """Plan one graph with each decision and without.

    Args:
        family: of the graph.
        name: of the graph.
        graph: what is planned.
        libraries: by decision; that without is the first.
        cost: prices.
        seconds: of each search.
    """
    (_, library), *others = libraries.items()
    first_us = float(cost.metrics(graph)["time_us"])
    chains = _C.search(graph, library, cost, searcher="chains", budget_ms=1e3 * seconds)
    _, best = cheapest(graph, library, cost, seconds, chains["steps"])
    best_us, _ = cheapest(graph, library, cost, seconds, best)  # as long again as with a decision
    rows = []
    for decision, larger in others:
        own = {name for name in larger.names if larger.family(name) == decision}
        with_us, steps = cheapest(graph, larger, cost, seconds, best)
        count = sum(step in own for step, _ in steps)
        rows.append(
            Found(decision, family, name, first_us, float(chains["cost_after_us"]), best_us, with_us, count)
        )
    return rows
