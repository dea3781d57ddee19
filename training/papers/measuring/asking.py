"""Strategies that measure graphs: search spaces, acquisition orders, and timing.

A row is a generator that yields graphs; the measured time of each graph is sent back to it.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
import itertools
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import linalg

from torchrlopt import _C
from torchrlopt.executors.registry import Lowered
from torchrlopt.machine.profiling import Source
from torchrlopt.machine.profiling.timing import no_garbage_collection
from training.episodes.answers import Answers
from training.graphs.fingerprint import fingerprint

Steps = list[tuple[str, int]]
Floats = NDArray[np.float64]
Row = Generator[_C.Graph, float, None]
Order = Generator[int, float, None]
Seconds = Callable[[], float]

BLOCK = 4  # consecutive timed calls, after one warm-up call
AGREE = 1.05  # largest accepted ratio between the two blocks of the first graph
TRIES = 6  # until they agree
HOW = f"{BLOCK} {AGREE} {TRIES}"  # timing parameters that results depend on, for the names of run files
MOST_STEPS = 50  # per episode, if the space is too large to enumerate
MOST_TRIES = 20  # per measurement that a row may make: in a small space, random play revisits known graphs
EXPANSIONS = 30_000  # of the searches whose plans a pool is built around
_NO_LIMIT, _NO_LIMIT_MS = 10_000, 1e9  # steps and locations; milliseconds
_DOUBT = 1.0  # standard deviations below the mean: the lower confidence bound by which `by_belief` orders
_BATCH = 20  # it refits after every 1 + known // _BATCH measurements

#: Candidate standard deviations of the factors, by `_PARTS`, and of a measurement: the likeliest are used.
_FACTORS = (
    (0.1, 0.1, 0.0), (0.1, 0.3, 0.1), (0.3, 0.1, 0.1), (0.3, 0.3, 0.3), (0.5, 1.0, 0.3), (1.0, 1.0, 1.0),
)  # fmt: skip
_NOISES = (0.003, 0.01, 0.03, 0.1)
_PARTS = 3


def ratios(call: Lowered, first: Lowered, source: Source, blocks: int) -> list[float]:
    """Ratios of blocks of calls of both; see `ratio`."""
    own, of_first = (functools.partial(least_seconds, each, source) for each in (call, first))
    return [ratio(own, of_first) for _ in range(blocks)]


def ratio(own: Seconds, first: Seconds) -> float:
    """A graph's time divided by that of the first graph, which is timed before and after it.

    A neighbour on the same host can halve a processor's speed for some hundredths of a second, and no system
    counter shows it. The two times of the first graph then differ, and everything is timed again. If they
    never agree, the attempt with the smallest difference counts.
    """
    found = []
    before = first()
    for _ in range(TRIES):
        time_of_own, after = own(), first()
        differ = max(before, after) / min(before, after)
        found.append((differ, 2 * time_of_own / (before + after)))
        if differ <= AGREE:
            break
        before = after
    return min(found)[1]


def least_seconds(call: Lowered, source: Source) -> float:
    """Minimum over a block of calls: other load can only add to a time."""
    times = []
    with torch.no_grad(), no_garbage_collection():
        call(*source.inputs)  # warms the caches with its own weights
        for _ in range(BLOCK):
            began = time.perf_counter()
            call(*source.inputs)
            times.append(time.perf_counter() - began)
    return min(times)


class Around:
    """Enumerates the graphs one step away from graphs reached by substitutions.

    Args:
        graph: where all steps start.
        library: the substitutions.
        cost: any; the environment requires one.
    """

    def __init__(self, graph: _C.Graph, library: _C.Library, cost: _C.CostModel) -> None:
        self._env = _C.VecRewriteEnv(
            [graph], library, cost, num_envs=2, max_steps=_NO_LIMIT, max_locations=_NO_LIMIT, has_macros=False
        )
        self._env.reset([0, 1], [{}, {}])

    def after(self, steps: Steps) -> Iterator[tuple[_C.Graph, Steps]]:
        """Graphs one step after some steps, each with all steps that lead to it.

        Exhaust or close one iterator before starting the next: they share an environment.
        """
        self._env.reset([0], [{"prefix": steps}])
        for action in range(len(self._env.hashes_after(0))):
            self._env.branch([0], [1], [action])
            yield self._env.graph(1), self._env.steps(1)


@dataclasses.dataclass(frozen=True)
class Space:
    """Distinct graphs, beginning with the start graph, and the steps that lead to each."""

    graphs: list[_C.Graph]
    steps: list[Steps]

    @classmethod
    def pool(cls, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, size: int) -> Space:
        """A pool of graphs around the cheapest ones.

        Best-first search by price in single steps, seeded with every graph along two plans.
        """
        around = Around(graph, library, cost)
        known: dict[str, tuple[_C.Graph, Steps]] = {}
        frontier: list[tuple[float, int, Steps]] = []
        order = itertools.count()  # ties in cost are broken first in, first out

        def add(found: _C.Graph, steps: Steps) -> None:
            key = fingerprint(found)
            if key not in known and len(known) < size:
                known[key] = found, steps
                heapq.heappush(frontier, (float(cost.metrics(found)["time_us"]), next(order), steps))

        add(graph, [])
        for searcher in ("iterated", "greedy"):
            limits = {"budget_ms": _NO_LIMIT_MS, "budget_steps": EXPANSIONS}
            plan: Steps = _C.search(graph, library, cost, searcher=searcher, **limits)["steps"]
            for length in reversed(range(len(plan) + 1)):  # the plans' ends first: they always fit
                add(_C.replay(graph, library, plan[:length]), plan[:length])
        while frontier and len(known) < size:
            _, _, steps = heapq.heappop(frontier)
            for found, taken in around.after(steps):
                add(found, taken)
        return cls(*map(list, zip(*known.values(), strict=True)))


def random_play(graph: _C.Graph, library: _C.Library, cost: _C.CostModel, rng: np.random.Generator) -> Row:
    """End graphs of 1 to `MOST_STEPS` random steps, each at one location as in WM; endless."""
    env = _C.VecRewriteEnv([graph], library, cost, num_envs=1, max_steps=1, has_macros=False)
    yield graph
    while True:
        steps = int(rng.integers(1, MOST_STEPS + 1))
        env.reset([0], [{"random_steps": steps, "seed": int(rng.integers(2**32))}])
        yield env.graph(0)


def random_macros(graph: _C.Graph, library: _C.Library, cost: _C.CostModel, rng: np.random.Generator) -> Row:
    """End graphs of episodes that choose uniformly from MF's candidates, including stop; endless."""
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


def best_first(graph: _C.Graph, library: _C.Library, cost: _C.CostModel, rng: np.random.Generator) -> Row:
    """Repeatedly measures the neighbours of the fastest measured graph, as TASO's search does by price."""
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


def by_price(space: Space, cost: _C.CostModel, rng: np.random.Generator) -> Order:
    """In ascending order of price, with ties in random order."""
    prices = np.array([round(float(cost.metrics(graph)["time_us"]), 3) for graph in space.graphs])
    ties = rng.permutation(len(prices))
    for place in np.lexsort((ties, prices)):
        yield int(place)


def by_belief(space: Space, cost: _C.CostModel, rng: np.random.Generator) -> Order:
    """By the lower confidence bound of a surrogate that learns from the measurements, see `Belief`."""
    belief = Belief.of(space.graphs, cost)
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


def of_space(order: Order, space: Space) -> Row:
    """The graphs of a space in a given order."""
    place = next(order)
    while True:
        told = yield space.graphs[place]
        try:
            place = order.send(told)
        except StopIteration:
            return


#: Rows that find their own graphs, and orders over a space.
FREE: Mapping[str, Callable[[_C.Graph, _C.Library, _C.CostModel, np.random.Generator], Row]] = {
    "random_play": random_play,
    "random_macros": random_macros,
    "best_first": best_first,
}
ORDERS: Mapping[str, Callable[[Space, _C.CostModel, np.random.Generator], Order]] = {
    "price": by_price,
    "belief": by_belief,
}


def ask(row: Row, machine: Answers, measurements: int) -> None:
    """Let a row make this many measurements; fewer if it ends or only revisits known graphs."""
    graph = next(row)
    for _ in range(MOST_TRIES * measurements):
        told = machine.time(graph)
        if len(machine.asked) >= measurements:
            return
        try:
            graph = row.send(told)
        except StopIteration:
            return


@dataclasses.dataclass(frozen=True)
class Belief:
    """Gaussian-process surrogate for the times of N graphs, updated by each measurement.

    A graph's time is the sum over its nodes of price times factor. The unknown factors belong to operator
    types, to operators of one shape, and to pairs of consecutive operators, which an executor may fuse.

    Attributes:
        before: [N], prior mean of the times, as shares of the first graph's.
        kernels: [_PARTS, N, N], inner products of the graphs' features, by type of factor.
    """

    before: Floats
    kernels: Floats

    @classmethod
    def of(cls, graphs: Sequence[_C.Graph], cost: _C.CostModel) -> Belief:
        """Prior over N graphs by their prices, the first of which is the unit of time."""
        parts = [_parts(graph, cost) for graph in graphs]
        first_us = sum(parts[0][0].values())
        price = np.array([sum(each[0].values()) for each in parts]) / first_us
        tables = [pd.DataFrame([each[part] for each in parts]).fillna(0.0) for part in range(_PARTS)]
        features = [table.to_numpy() / first_us for table in tables]
        kernels = np.stack([each @ each.T for each in features])
        return cls(price, kernels)

    def after(self, asked: Sequence[int], told: Sequence[float]) -> tuple[Floats, Floats]:
        """Posterior mean and standard deviation of each graph's time, [N] both.

        Args:
            asked: positions of the measured graphs.
            told: measured times, as shares of the first graph's.
        """
        if not asked:
            return self.before, np.sqrt(np.einsum("i,ijj->j", np.square(_FACTORS[1]), self.kernels))
        at = np.asarray(asked)
        rest = np.asarray(told) - self.before[at]
        own = self.kernels[:, at[:, None], at]
        tried = (
            _fitted(np.square(deviations), noise, own, rest) for deviations in _FACTORS for noise in _NOISES
        )
        _, variances, factor = max(tried, key=lambda each: each[0])
        kernel = np.einsum("i,ijk->jk", variances, self.kernels)
        mean = self.before + kernel[:, at] @ linalg.cho_solve((factor, True), rest)
        known = linalg.solve_triangular(factor, kernel[at], lower=True)
        variance = np.diagonal(kernel) - np.square(known).sum(0)
        return mean, np.sqrt(np.maximum(variance, 0.0))


def _fitted(variances: Floats, noise: float, kernels: Floats, rest: Floats) -> tuple[float, Floats, Floats]:
    """Log-likelihood up to a constant; the variances; the Cholesky factor of the measured graphs' covariance.

    Args:
        variances: of the factors, by type.
        noise: standard deviation of a measurement.
        kernels: [_PARTS, A, A], of the measured graphs.
        rest: [A], measured times minus prior means.
    """
    kernel = np.einsum("i,ijk->jk", variances, kernels) + (noise**2) * np.eye(len(rest))
    factor = linalg.cholesky(kernel, lower=True)
    solved = linalg.solve_triangular(factor, rest, lower=True)
    return float(-0.5 * solved @ solved - np.log(np.diagonal(factor)).sum()), variances, factor


def _parts(graph: _C.Graph, cost: _C.CostModel) -> tuple[Mapping[str, float], ...]:
    """Microseconds by operator type, by operator in its shape, and by pair of consecutive operators."""
    kinds, shapes, pairs = (collections.defaultdict[str, float](float) for _ in range(_PARTS))
    nodes = {node: graph.node(node) for node in graph.topological_order()}
    us = {node: float(cost.node(graph, node)["time_us"]) for node in nodes}
    keys = {node: cost.keys(graph, node)[0] for node in nodes if us[node] > 0}
    for node, key in keys.items():
        kinds[nodes[node]["op"]] += us[node]
        shapes[key] += us[node]
        for value in nodes[node]["inputs"]:
            if value is not None and value[0] in keys:
                pairs[f"{keys[value[0]]} {key}"] += min(us[node], us[value[0]])
    return kinds, shapes, pairs
