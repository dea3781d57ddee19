"""Prices for executors that run a graph as a whole: analytic prices fitted to whole-graph times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchrlopt import _C
from torchrlopt.machine.cost import Price
from torchrlopt.onnx.forms.from_onnx import OPERATORS

_PULL = 0.1  # regularisation of class factors towards the common one
_MIN_FACTOR = 0.02  # relative to the common factor


def fitted_prices(runs: Sequence[tuple[_C.Graph, float]], analytic: _C.CostModel) -> list[Price]:
    """Fit prices of all nodes of some graphs, so that their sums approximate the measured graph times.

    Each cost class gets a factor on its analytic price, by least squares of relative errors, regularised
    towards a common factor, because a handful of graphs of one model does not determine every class.

    Args:
        runs: graphs with their measured times in microseconds.
        analytic: the analytic cost model of the executor.

    Returns:
        One price for each distinct context.
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
            prices[context] = Price(own_key, context, op, fitted, 0.0, fitted, us, num_graphs=1)
    return list(prices.values())


def _runs(graph: _C.Graph, id_: int) -> bool:
    return not graph.node(id_)["is_static"]


def _cost_class(graph: _C.Graph, id_: int) -> str:
    return str(OPERATORS[str(graph.node(id_)["op"])]["cost_class"])
