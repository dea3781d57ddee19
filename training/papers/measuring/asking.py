"""What rows do that measure graphs: spaces of graphs, orders in which they are measured, and times.

A row is a generator of graphs, which is sent the measured time of the one that it has just given.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
import itertools
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg

from torchrlopt import _C
from torchrlopt.errors import SearchError
from torchrlopt.executors.registry import Lowered
from torchrlopt.machine.profiling import Source
from torchrlopt.machine.profiling.garbage import no_garbage_collection
from training.episodes.answers import Answers
from training.graphs.fingerprint import fingerprint

Steps = list[tuple[str, int]]
Floats = NDArray[np.float64]
Row = Generator[_C.Graph, float, None]
Order = Generator[int, float, None]
Seconds = Callable[[], float]

BLOCK = 4  # calls that are timed one after the other, after one that is not
AGREE = 1.05  # of two blocks of the first graph, the larger by the smaller
TRIES = 6  # until they agree
HOW = f"{BLOCK} {AGREE} {TRIES}"  # what times depend on, for the files of runs
MOST_STEPS = 50  # of an episode where a space is too large to be known
MOST_TRIES = 20  # for each measurement that a row may make: a small space is not left by chance alone
EXPANSIONS = 30_000  # of the searches whose plans a pool is built around
_NO_LIMIT, _NO_LIMIT_MS = 10_000, 1e9  # steps and locations; milliseconds
_DOUBT = 1.0  # standard deviations below the mean by which `by_belief` orders
_BATCH = 20  # it measures one in so many of what it knows before it thinks again

#: Standard deviations that a belief tries, of factors by `_PARTS` and of a measurement: the likeliest counts.
_FACTORS = (
    (0.1, 0.1, 0.0), (0.1, 0.3, 0.1), (0.3, 0.1, 0.1), (0.3, 0.3, 0.3), (0.5, 1.0, 0.3), (1.0, 1.0, 1.0),
)  # fmt: skip
_NOISES = (0.003, 0.01, 0.03, 0.1)
_PARTS = 3


def ratios(call: Lowered, first: Lowered, source: Source, blocks: int) -> list[float]:
    """Ratios, each of a block of calls of both; see `ratio`."""
    own, of_first = (functools.partial(least_seconds, each, source) for each in (call, first))
    return [ratio(own, of_first) for _ in range(blocks)]


def ratio(own: Seconds, first: Seconds) -> float:
    """A graph's time by that of the first graph, which is taken before and after.

    A neighbour on the same host can halve the speed of a processor for some hundredths of a second, and no
    count of the system tells of it: the first graph's times then differ, and all is timed again. Where they
    never agree, those count that differed least.
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
    """Of a block's calls: what else a machine does can only add to a time."""
    times = []
    with torch.no_grad(), no_garbage_collection():
        call(*source.inputs)  # brings its own weights back into the caches
        for _ in range(BLOCK):
            began = time.perf_counter()
            call(*source.inputs)
            times.append(time.perf_counter() - began)
    return min(times)


class Around:
    """What lies one step from the graphs that substitutions lead to.

    Args:
        graph: where all steps begin.
        library: the substitutions.
        cost: any; an environment has one.
    """

    def __init__(self, graph: _C.Graph, library: _C.Library, cost: _C.CostModel) -> None:
        self._env = _C.VecRewriteEnv(
            [graph], library, cost, num_envs=2, max_steps=_NO_LIMIT, max_locations=_NO_LIMIT, has_macros=False
        )
        self._env.reset([0, 1], [{}, {}])

    def after(self, steps: Steps) -> Iterator[tuple[_C.Graph, Steps]]:
        """Graphs one step after some steps, each with all steps that lead to it.

        One that is begun is ended, or let go, before the next is begun.
        """
        self._env.reset([0], [{"prefix": steps}])
        for action in range(len(self._env.hashes_after(0))):
            self._env.branch([0], [1], [action])
            yield self._env.graph(1), self._env.steps(1)


@dataclasses.dataclass(frozen=True)
class Space:
    """Distinct graphs, the first of which is where all begin, and the steps that lead to each."""

    graphs: list[_C.Graph]
    steps: list[Steps]

    @classmethod
    def whole(cls, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, most: int) -> Space:
        """Everything that substitutions lead to, in the order of the fewest steps.

        Raises:
            SearchError: that is more graphs than `most`.
        """
        around = Around(graph, library, cost)
        known: dict[str, tuple[_C.Graph, Steps]] = {fingerprint(graph): (graph, [])}
        todo: collections.deque[Steps] = collections.deque([[]])
        while todo:
            for after, taken in around.after(todo.popleft()):
                if known.setdefault(fingerprint(after), (after, taken))[1] is taken:
                    todo.append(taken)
                if len(known) > most:
                    raise SearchError("substitutions lead to more graphs", expected=f"at most {most}")
        return cls(*map(list, zip(*known.values(), strict=True)))

    @classmethod
    def pool(cls, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, size: int) -> Space:
        """Some around the cheapest ones.

        Best-first search by price in single steps, which begins at every graph on the way of two plans.
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
        for searcher in ("iterated", "greedy"):
            limits = {"budget_ms": _NO_LIMIT_MS, "budget_steps": EXPANSIONS}
            plan: Steps = _C.search(graph, library, cost, searcher=searcher, **limits)["steps"]
            for length in reversed(range(len(plan) + 1)):  # the ends first, for which there is always room
                add(_C.replay(graph, library, plan[:length]), plan[:length])
        while frontier and len(known) < size:
            _, _, steps = heapq.heappop(frontier)
            for found, taken in around.after(steps):
                add(found, taken)
        return cls(*map(list, zip(*known.values(), strict=True)))


def random_play(graph: _C.Graph, library: _C.Library, cost: _C.CostModel, rng: np.random.Generator) -> Row:
    """Where 1 to `MOST_STEPS` random steps lead, each at one place as those of WM; without end."""
    env = _C.VecRewriteEnv([graph], library, cost, num_envs=1, max_steps=1, has_macros=False)
    yield graph
    while True:
        steps = int(rng.integers(1, MOST_STEPS + 1))
        env.reset([0], [{"random_steps": steps, "seed": int(rng.integers(2**32))}])
        yield env.graph(0)


def random_macros(graph: _C.Graph, library: _C.Library, cost: _C.CostModel, rng: np.random.Generator) -> Row:
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


def best_first(graph: _C.Graph, library: _C.Library, cost: _C.CostModel, rng: np.random.Generator) -> Row:
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


def by_belief(
    space: Space, cost: _C.CostModel, rng: np.random.Generator, before: Sequence[float] | None = None
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


def of_space(order: Order, space: Space) -> Row:
    """The graphs of a space in an order."""
    place = next(order)
    while True:
        told = yield space.graphs[place]
        try:
            place = order.send(told)
        except StopIteration:
            return


#: Rows that find their own graphs, and orders of a space.
FREE: Mapping[str, Callable[[_C.Graph, _C.Library, _C.CostModel, np.random.Generator], Row]] = {
    "random_play": random_play,
    "random_macros": random_macros,
    "best_first": best_first,
}
ORDERS: Mapping[str, Callable[[Space, _C.CostModel, np.random.Generator], Order]] = {
    "random": at_random,
    "price": by_price,
    "belief": by_belief,
}


def ask(row: Row, machine: Answers, measurements: int) -> None:
    """Let a row measure so many graphs; fewer where it ends, or only comes to graphs that it knows."""
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
    """What is believed of the times of N graphs, corrected by each measurement: a Gaussian process.

    A graph's time is the sum over its nodes of price times factor. Factors are unknown: of a kind of
    operator, of an operator in one shape, and of two that follow each other, which an executor may fuse.

    Attributes:
        before: [N], times that are believed before anything is measured, as shares of the first graph's.
        kernels: [_PARTS, N, N], products of the graphs' features, by what a factor may belong to.
    """

    before: Floats
    kernels: Floats

    @classmethod
    def of(
        cls, graphs: Sequence[_C.Graph], cost: _C.CostModel, before: Sequence[float] | None = None
    ) -> Belief:
        """What is believed of some graphs, the first of which is the unit of time.

        Args:
            graphs: N of them.
            cost: prices.
            before: what is foretold of each graph; what its price says if None.
        """
        parts = [_parts(graph, cost) for graph in graphs]
        first_us = sum(parts[0][0].values())
        price = np.array([sum(each[0].values()) for each in parts]) / first_us
        features = [_matrix([each[part] for each in parts]) / first_us for part in range(_PARTS)]
        kernels = np.stack([each @ each.T for each in features])
        return cls(price if before is None else np.asarray(before), kernels)

    def after(self, asked: Sequence[int], told: Sequence[float]) -> tuple[Floats, Floats]:
        """Mean and standard deviation of what is believed of each graph's time, [N] both.

        Args:
            asked: positions of what was measured.
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
    """Logarithm of the likelihood, up to a constant; the variances; the factor of what was asked.

    Args:
        variances: of factors, by what they belong to.
        noise: standard deviation of a measurement.
        kernels: [_PARTS, A, A], of what was asked.
        rest: [A], told less believed.
    """
    kernel = np.einsum("i,ijk->jk", variances, kernels) + (noise**2) * np.eye(len(rest))
    factor = linalg.cholesky(kernel, lower=True)
    solved = linalg.solve_triangular(factor, rest, lower=True)
    return float(-0.5 * solved @ solved - np.log(np.diagonal(factor)).sum()), variances, factor


def _parts(graph: _C.Graph, cost: _C.CostModel) -> tuple[Mapping[Hashable, float], ...]:
    """Microseconds by kind of operator, by operator in its shape, and by two that follow each other."""
    kinds, shapes, pairs = (collections.defaultdict[Hashable, float](float) for _ in range(_PARTS))
    nodes = {node: graph.node(node) for node in graph.topological_order()}
    us = {node: float(cost.node(graph, node)["time_us"]) for node in nodes}
    keys = {node: cost.keys(graph, node)[0] for node in nodes if us[node] > 0}
    for node, key in keys.items():
        kinds[nodes[node]["op"]] += us[node]
        shapes[key] += us[node]
        for value in nodes[node]["inputs"]:
            if value is not None and value[0] in keys:
                pairs[keys[value[0]], key] += min(us[node], us[value[0]])
    return kinds, shapes, pairs


def _matrix(rows: Sequence[Mapping[Hashable, float]]) -> Floats:
    """[N, F] of rows by name."""
    names = {name: i for i, name in enumerate(dict.fromkeys(itertools.chain.from_iterable(rows)))}
    found = np.zeros((len(rows), len(names)))
    for row, values in zip(found, rows, strict=True):
        for name, value in values.items():
            row[names[name]] = value
    return found
