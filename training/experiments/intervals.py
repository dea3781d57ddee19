"""Intervals of the mean and of the median over few runs, and what differs by more than chance."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from baselines.shared.paired import holm

CONFIDENCE = 0.95


def half_width(values: Sequence[float] | np.ndarray) -> float:
    """Of the interval of a mean, by Student's distribution; 0 for one value or equal ones."""
    if len(values) < 2:
        return 0.0
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    return float(quantile * np.std(values, ddof=1) / len(values) ** 0.5)


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and its interval: two of the values, by the binomial distribution of how many lie below.

    Below six values none is as sure as `CONFIDENCE`: then they are the least and the largest.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    below = int(stats.binom.ppf((1 - CONFIDENCE) / 2, len(ordered), 0.5))
    below = max(0, below - 1)
    return float(np.median(ordered)), float(ordered[below]), float(ordered[len(ordered) - 1 - below])


def mean_and_half_width(values: np.ndarray) -> str:
    """The mean, of seeds, and the half width of its interval, where there is one."""
    return f"{values.mean():.3g}" + (f" ± {half_width(values):.2g}" if len(values) > 1 else "")


def differing(columns: Mapping[str, np.ndarray]) -> set[frozenset[str]]:
    """Pairs of names whose runs with the same seeds differ by more than chance, [seeds] each.

    By a paired t test; p-values are corrected for the number of pairs (Holm).
    """
    pairs = list(itertools.combinations(columns, 2))
    found = [p_of(columns[one] - columns[other]) for one, other in pairs]
    return {frozenset(pair) for pair, p in zip(pairs, holm(found), strict=True) if p < 1 - CONFIDENCE}


def p_of(differences: np.ndarray) -> float:
    """The p-value of a paired t test, of the differences of pairs; 1 for one pair."""
    if len(differences) < 2:
        return 1.0
    if np.ptp(differences) == 0:
        return float(differences[0] == 0)
    return float(stats.ttest_1samp(differences, 0.0).pvalue)
