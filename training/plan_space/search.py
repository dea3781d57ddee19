"""The cheapest plans with and without a decision, and whether the decision is worth having."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torchrlopt import _C

FOLDER = Path(__file__).parent / "decisions"
NOTHING = "nothing"  # the control: the same library, searched once more with other seeds
LEAST_GAIN = 0.02  # of time, below the cheapest plan without the decision
LEAST_SHARE = 0.2  # of the graphs of a family
ROUNDING = 1e-9
_SEEDED = ("restarts", "iterated")
_PATIENCE_MS = 600_000.0  # a safeguard: what ends a search is its number of expansions


def decisions() -> dict[str, str]:
    """The texts that are asked about, by name."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.txt"))}


@dataclasses.dataclass(frozen=True)
class Effort:
    """How thoroughly each library is searched.

    Attributes:
        expansions: of each search.
        seeds: of each searcher.
    """

    expansions: int = 600
    seeds: int = 2


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one search found: microseconds by price, and (substitution, location)."""

    us: float
    steps: list[tuple[str, int]]

    def count(self, names: set[str]) -> int:
        """Steps of some substitutions."""
        return sum(name in names for name, _ in self.steps)


@dataclasses.dataclass(frozen=True)
class Found:
    """What searches found for one graph, in microseconds by price.

    Attributes:
        executor: whose prices.
        decision: whose substitutions were added, or `NOTHING`.
        families: of the graph, with spaces between.
        graph: its name.
        first_us: of the graph itself.
        chains_us: greedy search with chains, without the decision.
        best_us: the cheapest plan that has no step of the decision, of all that any search found.
        with_us: the cheapest that has one; of `NOTHING` the cheapest that the control found. Not a number
            where there is none.
        steps: of the decision in that plan.
    """

    executor: str
    decision: str
    families: str
    graph: str
    first_us: float
    chains_us: float
    best_us: float
    with_us: float
    steps: int

    @property
    def gain(self) -> float:
        """What the decision saves, as a share of the cheapest plan without it; 0 where it saves nothing."""
        saved = 0.0 if math.isnan(self.with_us) else 1 - self.with_us / self.best_us
        return saved if saved > ROUNDING else 0.0

    @property
    def is_won(self) -> bool:
        """Whether the graph speaks for the decision."""
        return self.gain >= LEAST_GAIN


def is_admitted(found: Sequence[Found]) -> bool:
    """Whether enough graphs of one family speak for one decision."""
    return sum(each.is_won for each in found) >= LEAST_SHARE * len(found)


def _plan(
    graph: _C.Graph,
    library: _C.Library,
    cost: _C.CostModel,
    searcher: str,
    expansions: int,
    seed: int = 0,
    first: Sequence[tuple[str, int]] = (),
) -> Plan:
    found = _C.search(
        graph,
        library,
        cost,
        searcher=searcher,
        budget_ms=_PATIENCE_MS,
        budget_steps=expansions,
        seed=seed,
        first=first,
    )
    return Plan(float(found["cost_after_us"]), found["steps"])


def plans(
    graph: _C.Graph,
    library: _C.Library,
    cost: _C.CostModel,
    effort: Effort,
    first_seed: int = 0,
    best: Plan | None = None,
) -> Iterator[Plan]:
    """What each search finds: greedy with chains, then restarts and iterated local search by each seed.

    Args:
        graph: what is planned.
        library: the substitutions.
        cost: prices.
        effort: of the searches.
        first_seed: of the seeds.
        best: a plan that iterated local search goes on from, too.
    """
    yield _plan(graph, library, cost, "chains", effort.expansions)
    for seed in range(first_seed, first_seed + effort.seeds):
        for searcher in _SEEDED:
            yield _plan(graph, library, cost, searcher, effort.expansions, seed)
        if best is not None:
            yield _plan(graph, library, cost, "iterated", effort.expansions, seed, best.steps)


def ask(
    graph: _C.Graph,
    libraries: Mapping[str, _C.Library],
    cost: _C.CostModel,
    effort: Effort,
    told: tuple[str, str, str],
) -> list[Found]:
    """Plan one graph without any decision, once more without (the control), and with each, alike.

    Args:
        graph: what is planned.
        libraries: by decision; that without is `NOTHING`.
        cost: prices.
        effort: of the searches.
        told: executor, families and name of the graph.
    """
    base = libraries[NOTHING]
    once = list(plans(graph, base, cost, effort))
    best = min(once, key=lambda plan: plan.us)
    found = {
        name: list(plans(graph, library, cost, effort, effort.seeds, best))
        for name, library in libraries.items()
    }
    executor, families, name = told
    first_us = float(cost.metrics(graph)["time_us"])
    again = min(plan.us for plan in found[NOTHING])
    rows = [Found(executor, NOTHING, families, name, first_us, once[0].us, best.us, again, 0)]
    for decision, library in libraries.items():
        if decision != NOTHING:
            own = {each for each in library.names if library.family(each) == decision}
            # Searches of a larger library have other luck: a plan of theirs without the decision is one
            # that the library had before.
            without = [plan for plan in (*once, *found[NOTHING], *found[decision]) if not plan.count(own)]
            with_it = [plan for plan in found[decision] if plan.count(own)]
            chosen = min(with_it, key=lambda plan: plan.us, default=Plan(math.nan, []))
            least = min(plan.us for plan in without)
            rows.append(
                Found(executor, decision, families, name, first_us, once[0].us, least, chosen.us,
                      chosen.count(own))
            )  # fmt: skip
    return rows
