"""Confidence intervals of mean and median over few runs, and significance tests between them."""

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
    """Half width of the mean's confidence interval, by Student's t; 0 for one value or equal values."""
    given = np.asarray(values, dtype=float)
    if len(given) < 2:
        return 0.0
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, len(given) - 1)
    return float(quantile * np.std(given, ddof=1) / len(given) ** 0.5)


def interval(values: ArrayLike) -> tuple[float, float]:
    """Confidence interval of a mean, in seaborn's format."""
    mean, half = float(np.mean(np.asarray(values, dtype=float))), half_width(values)
    return mean - half, mean + half


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and its interval: two order statistics, by the binomial distribution of ranks.

    With fewer than six values no interval reaches `CONFIDENCE`; it is then the minimum and the maximum.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    below = max(0, int(stats.binom.ppf((1 - CONFIDENCE) / 2, len(ordered), 0.5)) - 1)
    return float(np.median(ordered)), float(ordered[below]), float(ordered[len(ordered) - 1 - below])


def mean_text(values: ArrayLike, digits: str = ".3g", unit: str = "", half_digits: str = ".2g") -> str:
    """A mean and, if there is one, the half width of its interval."""
    given = np.asarray(values, dtype=float)
    told = f"{given.mean():{digits}}{unit}"
    return f"{told} ± {half_width(given):{half_digits}}" if len(given) > 1 else told


def percent_text(values: ArrayLike) -> str:
    """A mean in percent, with its interval."""
    given = 100 * np.asarray(values, dtype=float)
    low, high = interval(given)
    return f"{given.mean():.1f} %" + (f" ({low:.1f} to {high:.1f})" if len(given) > 1 else "")


def p_of(differences: ArrayLike) -> float:
    """p-value of a paired t test, from the differences of pairs; 1 for one pair."""
    given = np.asarray(differences, dtype=float)
    if len(given) < 2:
        return 1.0
    if np.ptp(given) == 0:
        return float(given[0] == 0)
    return float(stats.ttest_1samp(given, 0.0).pvalue)


def compared(columns: Mapping[str, ArrayLike], pairs: Sequence[tuple[str, str]] = ()) -> pd.DataFrame:
    """Paired t tests between columns, for all pairs if none are named; Holm-corrected p-values."""
    named = list(pairs) or list(itertools.combinations(columns, 2))
    differences = [np.subtract(columns[one], columns[other]) for one, other in named]
    chances = holm([p_of(each) for each in differences])
    rows = [
        (one, other, float(each.mean()), *interval(each), p)
        for (one, other), each, p in zip(named, differences, chances, strict=True)
    ]
    return pd.DataFrame(rows, columns=["one", "other", "mean difference", "low", "high", "p"])
