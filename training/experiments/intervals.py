"""Intervals of the mean and of the median over few runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
_RESAMPLES = 1_000


def half_width(values: Sequence[float] | np.ndarray) -> float:
    """Of the interval of a mean, by Student's distribution; 0 for one value or equal ones."""
    if len(values) < 2:
        return 0.0
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    return float(quantile * np.std(values, ddof=1) / len(values) ** 0.5)


def resampled_half_widths(values: np.ndarray) -> tuple[float, float]:
    """Below and above a mean, by resampling with a fixed seed: for ten values or more that are not normal."""
    if len(values) < 2:
        return 0.0, 0.0
    drawn = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=2_000, rng=0)
    low, high = drawn.confidence_interval
    return float(values.mean() - low), float(high - values.mean())


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and its interval, by resampling with a fixed seed."""
    drawn = np.random.default_rng(0).choice(np.asarray(values), (_RESAMPLES, len(values)))
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(np.median(drawn, axis=1), [tail, 100 - tail])
    return float(np.median(values)), float(low), float(high)
