"""Rows that need no training, on graphs whose space is too large to be known.

Each is a generator of graphs, which is sent the measured time of the one that it has just given.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator, Mapping

import numpy as np

from torchrlopt import _C
from training.experiments.asking.orders import Order, by_belief, by_price
from training.experiments.asking.space import Around, Space, Steps
from training.experiments.efficiency.on_demand import OnDemand
from training.graphs.fingerprint import fingerprint

MOST_STEPS = 50  # of an episode, also of rows that are trained
MOST_TRIES = 20  # for each measurement that a row may make

Asking = Generator[_C.Graph, float, None]


def random_play(graph: _C.Graph, library: _C.Library, cost: _C.CostModel, rng: np.random.Generator) -> Asking:
    """Where 1 to `MOST_STEPS` random steps lead, each at one place as those of WM; without end."""
    env = _C.VecRewriteEnv([graph], library, cost, num_envs=1, max_steps=1, has_macros=False)
    yield graph
    while True:
        steps = int(rng.integers(1, MOST_STEPS + 1))
        env.reset([0], [{"random_steps": steps, "seed": int(rng.integers(2**32))}])
        yield env.graph(0)


def random_macros(
    graph: _C.Graph, library: _C.Library, cost: _C.CostModel, rng: np.random.Generator
) -> Asking:
    """What an episode ends with that takes anything of MF's table alike, stop among it; without end."""
    env = _C.VecRewriteEnv([graph], library, cost, num_envs=1, max_steps=MOST_STEPS, has_macros=True)
    yield graph
    while True:
        env.reset([0], [{}])
        for _ in range(MOST_STEPS):
            count = len(env.hashes_after(0))
            action = int(rng.integers(count + 1))
            if action == count:
                break
            env.step([action])
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


def ask(row: Asking, machine: OnDemand, measurements: int) -> None:
    """Let a row measure so many graphs; fewer where it ends, or only comes to graphs that it knows."""
    graph = next(row)
    for _ in range(MOST_TRIES * measurements):  # a small space is not left by chance alone
        told = machine.time(graph)
        if len(machine.asked) >= measurements:
            return
        try:
            graph = row.send(told)
        except StopIteration:
            return


#: Rows that find their own graphs, and orders of a pool.
FREE: Mapping[
    str, Callable[[_C.Graph, _C.Library, _C.CostModel, np.random.Generator], Asking]
] = {"random_play": random_play, "random_macros": random_macros, "best_first": best_first}  # fmt: skip
OF_POOL: Mapping[str, Callable[[Space, _C.CostModel, np.random.Generator], Order]] = {
    "price": by_price,
    "belief": by_belief,
}
