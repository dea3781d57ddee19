"""Compares two searchers on the same graphs: mean cost ratio, its interval over structures, its p-value."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

RESAMPLES = 9999
SMALLEST = 1e-6  # relative: smaller cost differences are rounding


@dataclasses.dataclass(frozen=True)
class Paired:
    """One searcher against another.

    Attributes:
        ratio: geometric mean over the structures of cost / the other's cost; below 1 is better.
        low, high: of its bootstrapped 95 % interval.
        p: two-sided p-value of a sign-flip test: random signs give a mean at least as far from 1.
        better, worse: number of structures on which it is cheaper or more expensive.
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
        other: the same for the rival.
        structures: of each graph: graphs that differ only in sizes count as one.
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
    """P-values corrected for multiple comparisons (Holm 1979), in the given order."""
    order = sorted(range(len(values)), key=values.__getitem__)
    corrected, largest = [0.0] * len(values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[index]))
        corrected[index] = largest
    return corrected
