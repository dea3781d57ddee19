"""Rewards: functions of what a step did. The environment reports costs and metrics, the learner chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrlopt import _C

#: Column of each quantity in the outcomes of a step, [B, len(OUTCOMES)].
OUTCOMES: dict[str, int] = {name: i for i, name in enumerate(_C.OUTCOME_COLUMNS)}

#: (outcomes before the step, outcomes after it), both [B, len(OUTCOMES)] -> rewards [B].
Reward = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]


def best_so_far(before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
    """By how much the lowest cost of the episode fell, as a fraction of the original graph's cost.

    A step that costs more is not punished: what counts is what the episode returns in the end.
    """
    best = OUTCOMES["best_us"]
    return np.asarray((before[:, best] - after[:, best]) / after[:, OUTCOMES["initial_us"]])


def cost_difference(before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
    """By how much the cost fell in this step, as a fraction of the original graph's cost."""
    cost = OUTCOMES["cost_after_us"]
    return np.asarray((before[:, cost] - after[:, cost]) / after[:, OUTCOMES["initial_us"]])


REWARDS: dict[str, Reward] = {"best_so_far": best_so_far, "cost_difference": cost_difference}
