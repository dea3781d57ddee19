"""Fills the profile: times the nodes of a model and nodes introduced by substitutions.

It times the original graph, then the result of greedy search, then graphs on random walks that contain
untimed nodes. Prices are stored after every graph, so a run may be stopped at any time and the next one
continues. If an executor runs a graph as a whole, whole graphs are timed and a fit divides their times among
the nodes.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from torchrlopt import _C
from torchrlopt.errors import LoweringError, UnsupportedError
from torchrlopt.executors.registry import Lowered
from torchrlopt.machine.cost import Price, ProfileStore, cost_model, machine_profile
from torchrlopt.machine.device import fingerprint
from torchrlopt.machine.profiling.sources import Source
from torchrlopt.machine.profiling.timing import run_times, time_nodes
from torchrlopt.machine.profiling.walks import walk
from torchrlopt.onnx.forms.from_onnx import OPERATORS

logger = logging.getLogger("torchrlopt")

_GRAPH_S = 0.5  # of running each graph, excluding lowering
_REFERENCE_S = 0.1  # of running the original after each
_MAX_STEPS = 32  # per walk
_MIN_UNKNOWN = 8  # untimed nodes that make a graph worth lowering
_MAX_IDLE_WALKS = 3  # in a row without enough of them: the profile is complete


@dataclasses.dataclass(frozen=True)
class Timed:
    """A timed graph.

    `what` is "original", "greedy" or "walk"; of its nodes, `num_new` had not been timed in their context
    before.
    """

    what: str
    num_nodes: int
    num_new: int
    run_us: float


def profile(
    source: Source,
    executor: str,
    library: _C.Library,
    store: ProfileStore,
    seconds: float,
    seed: int = 0,
    report: Callable[[Timed], None] = lambda _: None,
) -> int:
    """Time the nodes of a graph and of graphs near it.

    At least the original graph is timed, however short the time is. `report` is called with every timed
    graph.

    Returns:
        The number of graphs timed.

    Raises:
        LoweringError: the executor cannot run the original graph.
    """
    session = _Session(source, executor, library, store)
    deadline = time.monotonic() + seconds
    count = 0
    for what, graph in session.candidates(seed):
        if count and time.monotonic() > deadline:
            break
        unknown = session.num_unknown(graph)
        try:
            run_us = session.time(graph)
        except LoweringError as error:
            if what == "original":
                raise
            logger.debug("a graph cannot be lowered: %s", error)
            continue
        count += 1
        num_nodes = sum(not graph.node(id_)["is_static"] for id_ in graph.topological_order())
        report(Timed(what, num_nodes, unknown, run_us))
    return count


class _Session:
    """State of one call of `profile`."""

    def __init__(self, source: Source, executor: str, library: _C.Library, store: ProfileStore) -> None:
        self.source = source
        self.executor = executor
        self.library = library
        self.store = store
        self._device = fingerprint(source.device)
        self._analytic = cost_model(executor, source.device.type, source.sizes)
        self._cost: _C.CostModel | None = None
        self._reference: Lowered | None = None
        self._reference_us: list[float] = []
        self._whole: list[tuple[_C.Graph, float]] = []

    @property
    def cost(self) -> _C.CostModel:
        """Cost model with everything timed so far."""
        if self._cost is None:
            known = machine_profile(self.executor, self.source.device, self.store)
            self._cost = known.cost_model(self.source.sizes)
        return self._cost

    def num_unknown(self, graph: _C.Graph) -> int:
        """Return the number of nodes whose time in context is unknown."""
        return sum(not self.cost.is_measured(graph, id_) for id_ in graph.topological_order())

    def time(self, graph: _C.Graph) -> float:
        """Time a graph and store the prices; return the microseconds of a run."""
        lowered = self.source.lower(graph, self.executor)
        try:
            timed = time_nodes(self.source, graph, lowered, self._analytic, _GRAPH_S)
        except UnsupportedError:  # it runs the graph as a whole
            run_us = run_times([lowered], self.source.inputs, self.source.device, _GRAPH_S)[0]
            self._whole.append((graph, run_us * self._drift(lowered)))
            prices = fitted_prices(self._whole, self._analytic)
            self.store.add(self._device, self.executor, prices, replace=True)
        else:
            run_us, drift = timed.run_us, self._drift(lowered)
            prices = [dataclasses.replace(price, us=price.us * drift) for price in timed.prices]
            self.store.add(self._device, self.executor, prices)
        self._cost = None
        return run_us

    def _drift(self, lowered: Lowered) -> float:
        """Return the drift correction: the usual time of the first graph over its current time.

        The speed of a machine varies over minutes. The first graph is timed again after each graph as a
        reference of the current speed; measured times are multiplied by the correction.
        """
        self._reference = self._reference or lowered
        self._reference_us += run_times(
            [self._reference], self.source.inputs, self.source.device, _REFERENCE_S, min_rounds=5
        )
        return statistics.median(self._reference_us) / self._reference_us[-1]

    def candidates(self, seed: int) -> Iterator[tuple[str, _C.Graph]]:
        """Yield the original, the greedy result, then graphs with untimed nodes on walks from either."""
        original = self.source.program.graph
        yield "original", original
        greedy = _C.search(original, self.library, self.cost, searcher="greedy", budget_ms=5000)["graph"]
        if greedy.hash() != original.hash():
            yield "greedy", greedy
        num_idle = 0
        for round_ in itertools.count():
            start = greedy if round_ % 2 else original
            found = self._unknown_on_walk(start, seed * 1_000_003 + round_)
            num_idle = num_idle + 1 if found is None else 0
            if found is not None:
                yield "walk", found
            elif num_idle == _MAX_IDLE_WALKS:
                return

    def _unknown_on_walk(self, start: _C.Graph, seed: int) -> _C.Graph | None:
        """Return the end of a random walk, or None if it has too few untimed nodes."""
        graph = start
        for step in itertools.islice(walk(start, self.library, seed), _MAX_STEPS):
            graph = step
        return graph if self.num_unknown(graph) >= _MIN_UNKNOWN else None


_PULL = 0.1  # regularisation of class factors towards the common one
_MIN_FACTOR = 0.02  # relative to the common factor


def fitted_prices(runs: Sequence[tuple[_C.Graph, float]], analytic: _C.CostModel) -> list[Price]:
    """Fit prices of all nodes of some graphs, so that their sums approximate the measured graph times.

    Each cost class gets a factor on its analytic price, by least squares of relative errors, regularised
    towards a common factor, because a handful of graphs of one model does not determine every class.
    """
    nodes = [[i for i in graph.topological_order() if _runs(graph, i)] for graph, _ in runs]
    classes = sorted(
        {_cost_class(graph, i) for (graph, _), own in zip(runs, nodes, strict=True) for i in own}
    )
    sums = np.zeros((len(runs), len(classes)))
    for row, ((graph, _), own) in enumerate(zip(runs, nodes, strict=True)):
        for id_ in own:
            sums[row, classes.index(_cost_class(graph, id_))] += analytic.node(graph, id_)["time_us"]
    times = np.array([us for _, us in runs])
    common = float(np.median(times / np.maximum(sums.sum(axis=1), 1e-9)))
    # Rows of relative errors, then one regularisation row per class that pulls its factor to the common one.
    scaled = sums * common / times[:, None]
    pull = _PULL * np.eye(len(classes))
    system = np.vstack([scaled, pull])
    solution = np.linalg.lstsq(system, np.concatenate([np.ones(len(runs)), pull.sum(axis=1)]), rcond=None)[0]
    factors = dict(zip(classes, common * np.maximum(solution, _MIN_FACTOR), strict=True))
    prices: dict[int, Price] = {}
    for (graph, _), own in zip(runs, nodes, strict=True):
        for id_ in own:
            own_key, context = analytic.keys(graph, id_)
            op, us = str(graph.node(id_)["op"]), analytic.node(graph, id_)["time_us"]
            fitted = float(us * factors[_cost_class(graph, id_)])
            prices[context] = Price(own_key, context, op, fitted, us, num_graphs=1)
    return list(prices.values())


def _runs(graph: _C.Graph, id_: int) -> bool:
    return not graph.node(id_)["is_static"]


def _cost_class(graph: _C.Graph, id_: int) -> str:
    return str(OPERATORS[str(graph.node(id_)["op"])]["cost_class"])
