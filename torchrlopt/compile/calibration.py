"""Measures errors of lower precision on further inputs, and narrows the choice where they are too large."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchrlopt.compile.compiled import MEASURED, Compiled
from torchrlopt.compile.progress import progress

_MOST_TRIES = 3

Call = tuple[tuple[Any, ...], Mapping[str, Any]]


def calibrate(model: Callable[..., Any], calls: Sequence[Call]) -> None:
    """Call a model that has been compiled with a budget, and keep the budget for all of these calls.

    Each graph whose error was too large is built again with fewer calls in bfloat16, at most three times;
    then it computes in float32.
    """
    found: dict[Compiled, list[float]] = {}
    for number in range(_MOST_TRIES + 1):
        found = _errors(model, calls)
        beyond = [each for each, errors in found.items() if each.is_beyond(max(errors))]
        for each in beyond:
            each.narrow(max(found[each]), is_last=number == _MOST_TRIES)
        if not beyond:
            break
    for each, errors in found.items():
        each.status.calibration = f"{len(errors)} calls, largest error {max(errors):.2e}"
        each.end_calibration()


def _errors(model: Callable[..., Any], calls: Sequence[Call]) -> dict[Compiled, list[float]]:
    found: dict[Compiled, list[float]] = {}

    def note(compiled: Compiled, error: float) -> None:
        found.setdefault(compiled, []).append(error if not math.isnan(error) else math.inf)

    token = MEASURED.set(note)
    try:
        with torch.no_grad(), progress("rlopt calibrates", len(calls)) as advance:
            for args, kwargs in calls:
                model(*args, **kwargs)
                advance("")
    finally:
        MEASURED.reset(token)
    return found
