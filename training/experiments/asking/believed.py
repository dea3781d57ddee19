"""What is believed of the times of a space's graphs, corrected by each measurement: a model of prices.

A Gaussian process. A graph's time is the sum over its nodes of price times factor. Factors are unknown: of a
kind of operator, of an operator in one shape, and of two that follow each other, which an executor may fuse.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from torchrlopt import _C

Floats = NDArray[np.float64]

#: Standard deviations that are tried, of factors by `_PARTS` and of a measurement; the likeliest is taken.
_FACTORS = (
    (0.1, 0.1, 0.0),
    (0.1, 0.3, 0.1),
    (0.3, 0.1, 0.1),
    (0.3, 0.3, 0.3),
    (0.5, 1.0, 0.3),
    (1.0, 1.0, 1.0),
)
_NOISES = (0.003, 0.01, 0.03, 0.1)
_PARTS = 3


@dataclasses.dataclass(frozen=True)
class Belief:
    """Of N graphs.

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
        """What is believed of some graphs.

        Args:
            graphs: the first is the unit of time.
            cost: prices.
            before: what is foretold of each graph; what its price says if None.
        """
        parts = [_parts(graph, cost) for graph in graphs]
        first_us = sum(parts[0][0].values())
        price = np.array([sum(each[0].values()) for each in parts]) / first_us
        features = [_matrix([each[part] for each in parts]) / first_us for part in range(_PARTS)]
        return cls(
            price if before is None else np.asarray(before), np.stack([each @ each.T for each in features])
        )

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
        _, variances, factor = max(
            (
                _fitted(np.square(deviations), noise, own, rest)
                for deviations in _FACTORS
                for noise in _NOISES
            ),
            key=lambda each: each[0],
        )
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
