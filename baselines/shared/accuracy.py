"""How far the outputs of a peer are from float64, and how far they may be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from torchrlopt.judge.tolerances import TOLERANCES


def relative_error(outputs: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
    """Largest error of any output, in units of that output's largest magnitude in the reference.

    Returns:
        The error; infinite where number, shapes or the positions of non-finite values differ.
    """
    if len(outputs) != len(reference):
        return float("inf")
    worst = 0.0
    for actual, expected in zip(outputs, reference, strict=True):
        if actual.shape != expected.shape or not np.array_equal(np.isfinite(actual), np.isfinite(expected)):
            return float("inf")
        difference = np.abs(np.where(np.isfinite(expected), actual - expected, 0.0)).max(initial=0.0)
        scale = np.abs(np.where(np.isfinite(expected), expected, 0.0)).max(initial=0.0)
        worst = max(worst, float(difference / scale) if scale > 0 else float(difference))
    return worst


def error_limit(eager_error: float, dtype: str) -> float:
    """The largest error that counts as the same function, given eager's own, both against float64."""
    tolerance = TOLERANCES[getattr(torch, dtype)]
    return max(tolerance.max_factor * eager_error, tolerance.max_floor)
