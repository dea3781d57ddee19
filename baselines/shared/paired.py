"""Two searchers on the same graphs: mean ratio of costs, its interval over structures, and its p-value."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

RESAMPLES = 9999
SMALLEST = 1e-6  # relative: a smaller difference of costs is rounding


@dataclasses.dataclass(frozen=True)
class Paired:
    """One searcher against another.

    Attributes:
        ratio: geometric mean over the structures of cost / the other's cost; below 1 is better.
        low, high: of its bootstrapped interval of 95 %.
        p: that signs drawn at random give a mean as far from 1, either way.
        better, worse: structures on which it is cheaper, dearer.
        structures: how many there are.
    """

    ratio: float
    low: float
    high: float
    p: float
    better: int
    worse: int
    structures: int


def compared(mine: Mapping[str, float], other: Mapping[str, float], structures: Mapping[str, str]) -> Paired:
    """Compare costs by graph.

    Args:
        mine: cost of each graph.
        other: the same of the rival.
        structures: of each graph: graphs that differ in sizes only count as one.
    """
    logs: dict[str, list[float]] = {}
    for graph, cost in mine.items():
        logs.setdefault(structures[graph], []).append(math.log(cost / other[graph]))
    values = np.array([np.mean(each) for each in logs.values()])
    values[np.abs(values) < SMALLEST] = 0.0
    mean = float(values.mean())
    low = high = mean
    p = 1.0
    if len(values) > 1 and values.any():
        found = stats.bootstrap(
            (values,),
            np.mean,
            n_resamples=RESAMPLES,
            method="percentile",
            random_state=np.random.default_rng(0),
        )
        low, high = (float(each) for each in found.confidence_interval)
        p = float(
            stats.permutation_test(
                (values, np.zeros_like(values)),
                lambda x, y, axis: np.mean(x - y, axis=axis),
                permutation_type="samples",
                n_resamples=RESAMPLES,
                vectorized=True,
                random_state=np.random.default_rng(0),
            ).pvalue
        )
    return Paired(
        math.exp(mean),
        math.exp(low),
        math.exp(high),
        p,
        int((values < 0).sum()),
        int((values > 0).sum()),
        len(values),
    )


def holm(values: Sequence[float]) -> list[float]:
    """P-values corrected for their number (Holm 1979), in the order given."""
    order = sorted(range(len(values)), key=values.__getitem__)
    corrected, largest = [0.0] * len(values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[index]))
        corrected[index] = largest
    return corrected
