"""Times the nodes of one graph while the whole lowered program runs.

The time of a node depends on the program around it: whether its input is still in the cache, the layout of
the input, what is fused into its kernel, and concurrent work in Python. Timing a node in isolation misses all
of that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from torchrlopt import _C
from torchrlopt.executors.device_clock import Clock, clock_of
from torchrlopt.executors.eager.stamps import Stamped
from torchrlopt.executors.registry import Lowered
from torchrlopt.machine import contention
from torchrlopt.machine.cost import Price
from torchrlopt.machine.profiling.sources import Source

_WARM_UP = 2
_MIN_ROUNDS, _MAX_ROUNDS = 5, 40
_PATIENCE = 3.0  # multiple of the given seconds to wait for rounds without contention


@dataclasses.dataclass(frozen=True)
class TimedGraph:
    """Measured times of one graph.

    Attributes:
        prices: one for every distinct context in it.
        run_us: median time of an uninstrumented run, in microseconds.
    """

    prices: list[Price]
    run_us: float


def time_nodes(
    source: Source, graph: _C.Graph, lowered: Lowered, analytic: _C.CostModel, seconds: float
) -> TimedGraph:
    """Time every node of a graph.

    Instrumented and plain runs alternate. Node times are scaled so that they add up to the median of the
    plain runs: clock readings take time, and the median of a sum is not the sum of the medians.

    The analytic model decides which of several nodes that share a kernel is charged for it.

    Raises:
        UnsupportedError: the executor runs a graph as a whole.
    """
    clock = clock_of(source.device)
    stamped = Stamped(lowered, clock)
    calls_ns, runs_ns, plain_ns = _rounds(stamped, lowered, source.inputs, clock, seconds)
    reading = _reading_us(clock)
    calls = np.maximum(np.asarray(calls_ns) / 1e3 - reading, 0.0)
    outside = np.median(np.asarray(runs_ns) / 1e3 - np.asarray(calls_ns).sum(axis=1) / 1e3)
    plain_us = float(np.median(plain_ns)) / 1e3
    medians = np.median(calls, axis=0)
    scale = max(plain_us - float(outside), 0.0) / max(float(medians.sum()), 1e-9)
    owners = _owners(stamped, source.node_ids(graph), graph, analytic)
    nodes: dict[int, float] = defaultdict(float)
    for owner, us in zip(owners, medians * scale, strict=True):
        if owner is not None:
            nodes[owner] += float(us)
    leaves = graph.inputs
    for id_ in leaves:  # overhead around the kernels, above all weight checks
        nodes[id_] = float(outside) / len(leaves)
    return TimedGraph(_prices(graph, analytic, nodes), plain_us)


def run_times(
    callables: Sequence[Lowered],
    inputs: Sequence[Any],
    device: torch.device,
    seconds: float,
    min_rounds: int = 7,
) -> list[float]:
    """Return median times of callables that run alternately, in microseconds.

    Only calls without contention count, if each callable has at least `min_rounds` of them.
    """
    clock = clock_of(device)
    times: list[list[int]] = [[] for _ in callables]
    calm: list[list[int]] = [[] for _ in callables]
    gc.collect()
    with torch.no_grad(), no_garbage_collection():
        begin = time.perf_counter()
        while len(times[0]) < min_rounds or time.perf_counter() - begin < (
            seconds if min(map(len, calm)) >= min_rounds else _PATIENCE * seconds
        ):
            first = len(times[0]) % len(callables)  # rotate the order, so that position causes no bias
            for place in (*range(first, len(callables)), *range(first)):
                run = callables[place]
                run(*inputs)  # warm-up: brings its weights back into the caches
                waited = contention.waited_ns()
                start = clock()
                run(*inputs)
                times[place].append(clock() - start)
                if contention.is_calm(contention.waited_ns() - waited, times[place][-1]):
                    calm[place].append(times[place][-1])
            if len(times[0]) >= _MAX_ROUNDS * 5:
                break
    counted = calm if min(map(len, calm)) >= min_rounds else times
    return [float(np.median(own)) / 1e3 for own in counted]


def _rounds(
    stamped: Stamped, lowered: Lowered, inputs: Sequence[Any], clock: Clock, seconds: float
) -> tuple[list[list[int]], list[int], list[int]]:
    """Return nanoseconds of every call, of the instrumented runs, and of the plain runs.

    Only rounds without contention count, if there are enough of them.
    """
    calls: list[list[int]] = []
    runs: list[int] = []
    plain: list[int] = []
    calm: list[bool] = []
    gc.collect()
    with torch.no_grad(), no_garbage_collection():
        for _ in range(_WARM_UP):
            lowered(*inputs)
            stamped(inputs)
        begin = time.perf_counter()
        while True:
            spent = time.perf_counter() - begin
            limit = seconds if sum(calm) >= _MIN_ROUNDS else _PATIENCE * seconds
            if len(calls) >= _MAX_ROUNDS or (len(calls) >= _MIN_ROUNDS and spent > limit):
                break
            waited = contention.waited_ns()
            start = clock()
            lowered(*inputs)
            plain.append(clock() - start)
            each, run = stamped(inputs)
            calls.append(each)
            runs.append(run)
            calm.append(contention.is_calm(contention.waited_ns() - waited, clock() - start))
    if sum(calm) < _MIN_ROUNDS:
        return calls, runs, plain
    return (
        list(itertools.compress(calls, calm)),
        list(itertools.compress(runs, calm)),
        list(itertools.compress(plain, calm)),
    )


def _reading_us(clock: Clock) -> float:
    """Return the time of one clock reading on an idle device, in microseconds."""
    stamps = [clock() for _ in range(2001)]
    return float(np.median(np.diff(stamps))) / 1e3


def _owners(
    stamped: Stamped, ids: Mapping[str, int], graph: _C.Graph, analytic: _C.CostModel
) -> list[int | None]:
    """Return the node that each call is charged to: the costliest of its nodes by the analytic model.

    A call without a node (a layout conversion) is charged to its producer, else to its reader.
    """
    owners: list[int | None] = []
    for origin, sources in zip(stamped.origins, stamped.sources, strict=True):
        candidates = [ids[name] for name in origin if name in ids]
        candidates = [id_ for id_ in candidates if not graph.node(id_)["is_static"]] or candidates
        if candidates:
            owners.append(max(candidates, key=lambda id_: analytic.node(graph, id_)["time_us"]))
        else:
            owners.append(next((owners[source] for source in sources if owners[source] is not None), None))
    for owner, sources in zip(owners, stamped.sources, strict=True):
        for source in sources:
            owners[source] = owner if owners[source] is None else owners[source]
    return owners


def _prices(graph: _C.Graph, analytic: _C.CostModel, nodes: Mapping[int, float]) -> list[Price]:
    """Return one price per distinct context: the mean over the nodes that have it."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for id_ in graph.topological_order():
        if id_ in nodes or not graph.node(id_)["is_static"]:
            groups[analytic.keys(graph, id_)].append(id_)
    prices = []
    for (own, context), members in groups.items():
        # The mean, not the median: identical nodes early and late in a program differ in what is cached.
        us = float(np.mean([nodes.get(id_, 0.0) for id_ in members]))
        op, analytic_us = str(graph.node(members[0])["op"]), analytic.node(graph, members[0])["time_us"]
        prices.append(Price(own, context, op, us, analytic_us, num_graphs=1))
    return prices


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable the collector temporarily; if it was disabled before, it stays disabled.

    It is process-wide, so code on the path of a user's compilation must not disable it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
