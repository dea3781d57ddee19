"""Rows that need no training: the order in which each measures the graphs of a space.

Each is a generator of positions, which is sent the measured time of the one that it has just given.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Sequence

import numpy as np

from torchrlopt import _C
from training.experiments.asking.believed import Belief
from training.experiments.asking.space import Space

BELIEF = "belief"
_DOUBT = 1.0  # standard deviations below the mean by which `by_belief` orders
_BATCH = 20  # it measures one in so many of what it knows before it thinks again

Order = Generator[int, float, None]


def at_random(space: Space, cost: _C.CostModel, rng: np.random.Generator) -> Order:
    """The first graph, then any."""
    yield 0
    for place in rng.permutation(len(space.graphs) - 1):
        yield int(place) + 1


def by_price(space: Space, cost: _C.CostModel, rng: np.random.Generator) -> Order:
    """The cheapest by price first; those of one price in any order."""
    prices = np.array([round(float(cost.metrics(graph)["time_us"]), 3) for graph in space.graphs])
    ties = rng.permutation(len(prices))
    for place in np.lexsort((ties, prices)):
        yield int(place)


def best_first(space: Space, cost: _C.CostModel, rng: np.random.Generator) -> Order:
    """What is one step away from the fastest measured, again and again; as TASO's search does by price."""
    times: dict[int, float] = {}
    times[0] = yield 0
    frontier = [(times[0], 0)]
    while frontier:
        _, place = heapq.heappop(frontier)
        for other in rng.permutation(space.next[place]).tolist():
            if other not in times:
                times[other] = yield other
                heapq.heappush(frontier, (times[other], other))


def by_belief(
    space: Space,
    cost: _C.CostModel,
    rng: np.random.Generator,
    before: Sequence[float] | None = None,
) -> Order:
    """What a model of the machine that learns, see `Belief`, hopes to be fastest."""
    belief = Belief.of(space.graphs, cost, before)
    asked: list[int] = []
    told: list[float] = []
    while len(asked) < len(space.graphs):
        mean, doubt = belief.after(asked, told)
        hope = mean - _DOUBT * doubt
        hope[asked] = np.inf
        for place in np.lexsort((rng.permutation(len(hope)), hope))[: 1 + len(asked) // _BATCH].tolist():
            if place not in asked:
                told.append((yield place))
                asked.append(place)


def asked_by(order: Order, times: Sequence[float]) -> list[int]:
    """Positions in the order in which a row measures them.

    Args:
        order: of the row, not begun.
        times: what it is told of each position.
    """
    asked = [next(order)]
    while True:
        try:
            asked.append(order.send(times[asked[-1]]))
        except StopIteration:
            return asked


ORDERS: dict[str, Callable[[Space, _C.CostModel, np.random.Generator], Order]] = {
    "random": at_random,
    "price": by_price,
    "best_first": best_first,
    BELIEF: by_belief,
}
