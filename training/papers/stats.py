"""Intervals of the mean and of the median over few runs, and tests between them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from baselines.shared.paired import holm

CONFIDENCE = 0.95


def half_width(values: ArrayLike) -> float:
    """Of the interval of a mean, by Student's distribution; 0 for one value or equal ones."""
    given = np.asarray(values, dtype=float)
    if len(given) < 2:
        return 0.0
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, len(given) - 1)
    return float(quantile * np.std(given, ddof=1) / len(given) ** 0.5)


def interval(values: ArrayLike) -> tuple[float, float]:
    """Of a mean, as seaborn asks for it."""
    mean, half = float(np.mean(np.asarray(values, dtype=float))), half_width(values)
    return mean - half, mean + half


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and its interval: two of the values, by the binomial distribution of how many lie below.

    Below six values none is as sure as `CONFIDENCE`: then they are the least and the largest.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    below = max(0, int(stats.binom.ppf((1 - CONFIDENCE) / 2, len(ordered), 0.5)) - 1)
    return float(np.median(ordered)), float(ordered[below]), float(ordered[len(ordered) - 1 - below])


def mean_text(values: ArrayLike, digits: str = ".3g", unit: str = "", half_digits: str = ".2g") -> str:
    """A mean and the half width of its interval, where there is one."""
    given = np.asarray(values, dtype=float)
    told = f"{given.mean():{digits}}{unit}"
    return f"{told} ± {half_width(given):{half_digits}}" if len(given) > 1 else told


def percent_text(values: ArrayLike) -> str:
    """A mean in percent, with its interval."""
    given = 100 * np.asarray(values, dtype=float)
    low, high = interval(given)
    return f"{given.mean():.1f} %" + (f" ({low:.1f} to {high:.1f})" if len(given) > 1 else "")


def p_of(differences: ArrayLike) -> float:
    """The p-value of a paired t test, of the differences of pairs; 1 for one pair."""
    given = np.asarray(differences, dtype=float)
    if len(given) < 2:
        return 1.0
    if np.ptp(given) == 0:
        return float(given[0] == 0)
    return float(stats.ttest_1samp(given, 0.0).pvalue)


def compared(columns: Mapping[str, ArrayLike], pairs: Sequence[tuple[str, str]] = ()) -> pd.DataFrame:
    """Paired t tests between columns, of all pairs if none are named; p-values corrected by Holm."""
    named = list(pairs) or list(itertools.combinations(columns, 2))
    differences = [np.subtract(columns[one], columns[other]) for one, other in named]
    chances = holm([p_of(each) for each in differences])
    rows = [
        (one, other, float(each.mean()), *interval(each), p)
        for (one, other), each, p in zip(named, differences, chances, strict=True)
    ]
    return pd.DataFrame(rows, columns=["one", "other", "mean difference", "low", "high", "p"])
