"""Reads verdicts stored by an earlier process, and decides for how long they hold.

A machine that was busy while a graph was timed may have given the wrong verdict. So a verdict is stored with
its spread and the time it was taken, and expires: soon if it was noisy.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torchrlopt.judge.floats import Own
from torchrlopt.judge.local import Local
from torchrlopt.judge.policy import MAX_AGE_S, NOISY_MAX_AGE_S, NOISY_SPREAD
from torchrlopt.report import Timing


def holds(taken_at: Any, spread: Any, is_calm: Any = True) -> bool:
    """Whether a stored verdict still holds; False for malformed values.

    Args:
        taken_at: when it was taken, in seconds since the epoch.
        spread: of the ratios that it was taken from.
        is_calm: False if the process hardly had its processors meanwhile.
    """
    try:
        if not (math.isfinite(taken_at) and math.isfinite(spread)):
            return False
    except (TypeError, OverflowError):  # JSON has integers that no float holds
        return False
    is_noisy = spread > NOISY_SPREAD or is_calm is not True
    max_age_s = NOISY_MAX_AGE_S if is_noisy else MAX_AGE_S
    return bool(0 <= time.time() - taken_at <= max_age_s and spread >= 0)


def timing_from(stored: Mapping[str, Any] | None) -> Timing | None:
    """Return the timing of a stored entry; None if there is none, or it has expired.

    Raises:
        KeyError, TypeError, ValueError: it is malformed.
    """
    if stored is None:
        return None
    names = ("before_ms", "after_ms", "gain", "spread", "taken_at")
    numbers = {name: _float(stored[name]) for name in names}
    timing = Timing(
        **numbers,
        num_rounds=int(stored["num_rounds"]),
        is_calm=bool(stored["is_calm"]),
        is_bound=bool(stored.get("is_bound", False)),
    )
    is_finite = all(map(math.isfinite, numbers.values()))
    if not is_finite or min(timing.before_ms, timing.after_ms) <= 0 or timing.num_rounds < 1:
        raise ValueError(f"no timing: {numbers}")
    return timing if holds(timing.taken_at, timing.spread, timing.is_calm) else None


def errors_from(stored: Mapping[str, Any]) -> tuple[float, tuple[Own, ...]]:
    """Return the numerical error of a stored check, and the original's own errors.

    Raises:
        KeyError, TypeError, ValueError: it is malformed.
    """
    error = _float(stored["error"])
    numbers = [(_float(rmse), _float(largest)) for rmse, largest in stored["own"]]
    for each in (error, *itertools.chain.from_iterable(numbers)):
        if not math.isfinite(each) or each < 0:
            raise ValueError(f"no error of a check: {each}")
    parts = stored.get("parts") or [None] * len(numbers)
    return error, tuple(
        Own(*each, found if isinstance(found, Mapping) else None)
        for each, found in zip(numbers, parts, strict=True)
    )


def _float(number: Any) -> float:
    """Convert a number; raises ValueError for an integer that no float holds."""
    try:
        return float(number)
    except OverflowError as error:
        raise ValueError(str(error)) from error


def errors_as_dict(error: float, own: Sequence[Own]) -> dict[str, Any]:
    """Return the dictionary that `errors_from` reads."""
    parts = [each.parts.as_dict() if isinstance(each.parts, Local) else each.parts for each in own]
    return {"error": error, "own": [list(each[:2]) for each in own], "parts": parts}
