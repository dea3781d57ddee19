"""Step rewards: best-so-far, and R1 to R5 of the dissertation (section 3.2.4, figure 4.6).

All are divided by the initial cost (or memory traffic) of the graph, so that graphs of all sizes have equal
weight; an illegal action is penalised by `ILLEGAL` instead of the dissertation's 100 ms. Memory traffic is
predicted by the cost model. The environment reports costs and metrics; the learner chooses the reward.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from torchrlopt import _C

#: Column of each quantity in the outcomes of a step, [B, len(OUTCOMES)].
OUTCOMES: dict[str, int] = {name: i for i, name in enumerate(_C.OUTCOME_COLUMNS)}

Outcomes = NDArray[np.float64]
#: (outcomes before the step, after it, at the start of the episode), each [B, len(OUTCOMES)] -> rewards [B].
Reward = Callable[[Outcomes, Outcomes, Outcomes], Outcomes]

ILLEGAL = -1.0


def _column(outcomes: Outcomes, name: str) -> Outcomes:
    return np.asarray(outcomes[:, OUTCOMES[name]])


def _unless_illegal(rewards: Outcomes, after: Outcomes) -> Outcomes:
    return np.where(_column(after, "is_illegal") > 0, ILLEGAL, rewards)


def best_so_far(before: Outcomes, after: Outcomes, first: Outcomes) -> Outcomes:
    """Return the decrease of the episode's lowest cost, as a fraction of the original graph's cost.

    A step that raises the cost is not penalised: only the best graph of the episode counts.
    """
    fall = _column(before, "best_us") - _column(after, "best_us")
    return np.asarray(fall / _column(after, "initial_us"))


def weighted(time_weight: float, memory_weight: float) -> Reward:
    """Return the reward alpha * decrease of run time + beta * decrease of memory traffic of a step."""

    def reward(before: Outcomes, after: Outcomes, first: Outcomes) -> Outcomes:
        time = _column(before, "cost_after_us") - _column(after, "cost_after_us")
        memory = _column(before, "bytes") - _column(after, "bytes")
        traffic = np.maximum(_column(first, "bytes"), 1.0)
        shares = time_weight * time / _column(after, "initial_us") + memory_weight * memory / traffic
        return _unless_illegal(shares, after)

    return reward


def new_run_time(before: Outcomes, after: Outcomes, first: Outcomes) -> Outcomes:
    """Return the total decrease of the run time since the original graph: 0 until something is gained."""
    gain = _column(after, "initial_us") - _column(after, "cost_after_us")
    return _unless_illegal(gain / _column(after, "initial_us"), after)


REWARDS: dict[str, Reward] = {
    "best_so_far": best_so_far,
    "R1": weighted(0.8, 0.2),
    "R2": new_run_time,
    "R3": weighted(0.1, 0.9),
    "R4": weighted(0.5, 0.5),
    "R5": weighted(1.0, 0.0),
    # The grid of figure 4.6: alpha = 0, 0.1, ... 1, beta = 1 - alpha.
    **{f"alpha{tenths / 10}": weighted(tenths / 10, 1 - tenths / 10) for tenths in range(11)},
}
