"""Scores searchers on graphs that training never saw, against greedy, beam search and others of the core."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from torchrlopt import _C
from torchrlopt.options import SearchOptions
from torchrlopt.plan import search
from training.graphs.curriculum import Sample, sample_graph
from training.random_keys import Purpose

MAX_BUDGET_MS = 60_000.0  # only a safeguard against hangs: searches are compared at equal expansions


@dataclasses.dataclass(frozen=True)
class Score:
    """Scores of one searcher over all graphs.

    Attributes:
        ratio: geometric mean of cost after / cost before.
        to_greedy: geometric mean of cost after / greedy's cost after; below 1 is better.
        better: share of graphs that are cheaper than greedy's by more than a thousandth.
        expansions: mean over the graphs.
    """

    ratio: float
    to_greedy: float
    better: float
    expansions: float

    def cells(self) -> tuple[str, ...]:
        """Formatted in the order of `COLUMNS`, without the searcher's name."""
        numbers = (f"{self.ratio:.4f}", f"{self.to_greedy:.4f}", f"{self.better:.0%}")
        return (*numbers, f"{self.expansions:.0f}")


COLUMNS = ("searcher", "cost after / before", "against greedy", "better than greedy", "expansions")


def table_of(scores: Mapping[str, Score]) -> list[str]:
    """Scores by searcher, as lines of Markdown."""
    rows = [(name, *score.cells()) for name, score in scores.items()]
    head, *lines = [f"| {' | '.join(row)} |" for row in (COLUMNS, *rows)]
    return [head, "|---" * len(COLUMNS) + "|", *lines]


def held_out_graph(number: int, seed: int = 0) -> Sample:
    """One graph of the held-out split."""
    return sample_graph(Purpose.HELD_OUT_GRAPH, seed, number, split="held_out")


def unseen_graph(number: int, seed: int = 0) -> Sample:
    """One graph of the test split."""
    return sample_graph(Purpose.TEST_GRAPH, seed, number, split="test")


def known_graph(number: int, seed: int = 0) -> Sample:
    """One graph of the training families, by a key that training does not use."""
    return sample_graph(Purpose.KNOWN_GRAPH, seed, number)


def held_out_graphs(count: int, seed: int = 0) -> list[Sample]:
    """The first graphs of the held-out split."""
    return [held_out_graph(number, seed) for number in range(count)]


def plans_of(
    searchers: Mapping[str, search.Searcher],
    graphs: Sequence[_C.Graph],
    library: _C.Library,
    cost: _C.CostModel,
    budget_steps: int,
) -> dict[str, list[search.Plan]]:
    """Plans of the core's searches and of the given searchers, each with the same number of expansions."""
    names = ("greedy", "beam", "taso", "annealing")
    options = {name: _options(name, budget_steps) for name in names}
    plans = {
        name: [search.ClassicSearcher().search(graph, library, cost, options[name]) for graph in graphs]
        for name in names
    }
    for name, searcher in searchers.items():
        plans[name] = [searcher.search(graph, library, cost, options["beam"]) for graph in graphs]
    return plans


def _options(searcher: str, budget_steps: int) -> SearchOptions:
    return SearchOptions(searcher=searcher, budget_ms=MAX_BUDGET_MS, budget_steps=budget_steps)


def scores_of(plans: Mapping[str, Sequence[search.Plan]]) -> dict[str, Score]:
    """Scores of each searcher."""
    return {name: _score(mine, plans["greedy"]) for name, mine in plans.items()}


def _score(mine: Sequence[search.Plan], greedy: Sequence[search.Plan]) -> Score:
    count = len(mine)
    ratios = [plan.cost_after_ms / plan.cost_before_ms for plan in mine]
    against = [plan.cost_after_ms / other.cost_after_ms for plan, other in zip(mine, greedy, strict=True)]
    return Score(
        ratio=math.exp(sum(map(math.log, ratios)) / count),
        to_greedy=math.exp(sum(map(math.log, against)) / count),
        better=sum(each < 0.999 for each in against) / count,
        expansions=sum(plan.expansions for plan in mine) / count,
    )
