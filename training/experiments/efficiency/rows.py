"""Rows that need no training, on graphs whose space is too large to be known.

Each is a generator of graphs, which is sent the measured time of the one that it has just given.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator, Mapping

import numpy as np

from torchrlopt import _C
from training.experiments.efficiency.machine import Machine
from training.experiments.measurements.searchers import Order, by_belief, by_price
from training.experiments.measurements.space import Around, Space, Steps
from training.graphs.fingerprint import fingerprint

Asking = Generator[_C.Graph, float, None]


def random_play(graph: _C.Graph, library: _C.Library, cost: _C.CostModel, rng: np.random.Generator) -> Asking:
    """Where random steps lead, at most `MOST_STEPS` of them; without end."""
    env = _C.VecRewriteEnv([graph], library, cost, num_envs=1, max_steps=MOST_STEPS + 1, has_macros=False)
    yield graph
    while True:
        steps = int(rng.integers(1, MOST_STEPS + 1))
        env.reset([0], [{"random_steps": steps, "seed": int(rng.integers(2**32))}])
        yield env.graph(0)


def best_first(graph: _C.Graph, library: _C.Library, cost: _C.CostModel, rng: np.random.Generator) -> Asking:
    """What is one step away from the fastest measured, again and again; as TASO's search does by price."""
    around = Around(graph, library, cost)
    order = itertools.count()
    first: Steps = []
    frontier = [((yield graph), next(order), first)]
    known = {fingerprint(graph)}
    while frontier:
        _, _, steps = heapq.heappop(frontier)
        following = list(around.after(steps))
        for place in rng.permutation(len(following)).tolist():
            after, taken = following[place]
            if (key := fingerprint(after)) not in known:
                known.add(key)
                heapq.heappush(frontier, ((yield after), next(order), taken))


def of_pool(order: Order, space: Space) -> Asking:
    """The graphs of a pool in an order."""
    place = next(order)
    while True:
        told = yield space.graphs[place]
        try:
            place = order.send(told)
        except StopIteration:
            return


def ask(rows: Asking, machine: Machine, measurements: int) -> None:
    """Let a row measure so many graphs, or fewer where it knows no more."""
    graph = next(rows)
    for _ in range(_MOST_TRIES * measurements):  # a small space is not left by chance alone
        told = machine.time(graph)
        if len(machine.asked) >= measurements:
            return
        try:
            graph = rows.send(told)
        except StopIteration:
            return


MOST_STEPS = 50  # of an episode
_MOST_TRIES = 20

#: Rows that find their own graphs, and orders of a pool.
FREE: Mapping[
    str, Callable[[_C.Graph, _C.Library, _C.CostModel, np.random.Generator], Asking]
] = {"random_play": random_play, "best_first": best_first}  # fmt: skip
OF_POOL: Mapping[str, Callable[[Space, _C.CostModel, np.random.Generator], Order]] = {
    "price": by_price,
    "belief": by_belief,
}
