"""Tries choices until their measured error uses the budget: predictions are off where outputs saturate.

To first order errors add, but a softmax that is nearly one-hot, or an error of tens of percent, is not of
first order. So a choice that misses the budget is made again for a smaller target, and one that uses little
of it for a larger one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from torchrlopt.precision.assignment import Choice

MARGIN = 0.9
"""Part of the budget that a choice may use by prediction: predictions are 10 % too low at times, and other
inputs have other errors."""

_USED = 0.7
"""A choice that uses more of the budget is final: most predictions are right to within 20 %."""

_WORTHWHILE = 0.98
"""Share of the time that a further try must be predicted to take at most, since each is built and run."""

_MOST_TRIES = 3


@dataclasses.dataclass(frozen=True)
class Tried:
    """What was tried.

    Attributes:
        choice: the fastest whose measured error is within the budget; None if there was none.
        error: measured, of that choice.
        reason: why there was none.
    """

    choice: Choice | None
    error: float
    reason: str = ""


def tried(
    within: Callable[[float], Choice], error_of: Callable[[Choice], float], budget: float, target: float
) -> Tried:
    """Return the fastest choice that keeps a budget, of at most three whose errors are measured.

    Args:
        within: makes a choice whose predicted error is at most this.
        error_of: measures the error of a choice.
        budget: most error that is allowed.
        target: most predicted error of the first choice.
    """
    kept, missed = Tried(None, math.inf, "nothing that saves time fits into the budget"), math.inf
    for _ in range(_MOST_TRIES):
        choice = within(target)
        if choice.is_exact or (kept.choice is not None and choice.us > _WORTHWHILE * kept.choice.us):
            break
        error = error_of(choice)
        if error <= budget:
            kept = Tried(choice, error)
            if error > _USED * budget:
                break
        else:
            missed = min(missed, target)
            if kept.choice is None:
                predicted = f"{choice.error:.3g} was predicted"
                kept = Tried(None, error, f"the error was {error:.3g} where {predicted}")
        aim = target * MARGIN * budget / max(error, 1e-30)
        target = aim if aim < missed else math.sqrt(target * missed)
    return kept
