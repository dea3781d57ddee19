"""Precision as a Gymnasium environment: a step changes the type of a call or a group, and asks for the error.

Steps are expensive, since each new assignment is measured. `gymnasium.vector.SyncVectorEnv` steps many
environments of one graph, which share the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from training.precision.answers import RUNGS, Array, MeasuredGraph

BUDGET = 1e-2
"""Largest error of an assignment that counts."""

_NUM_RUNGS = len(RUNGS)
_MOST_OVER = 3.0  # powers of ten: larger errors look alike


class PrecisionEnv(gymnasium.Env[Array, np.int64]):
    """Episodes begin in float32. A reward is what a step saves of the least time with an error in the budget.

    So the rewards of an episode add up to the share of the time in float32 that its best assignment saves.
    An observation, float32 [M, F], has a row for each of M moves, which are the calls and then the groups:
    features of their calls on average, the shares of the calls in each rung, and what is known of the whole.
    Action 4 m + r gives the calls of move m the rung r. Where they cannot all have it, it changes the others.

    Args:
        graph: of the episodes.
        error: measures the error of an assignment; default: `graph.error`.
        budget: largest error that counts.
        max_steps: after which an episode is truncated.

    Attributes:
        moves: places of the calls that each of the moves changes.
        rungs: the assignment.
    """

    def __init__(
        self,
        graph: MeasuredGraph,
        error: Callable[[Sequence[int]], float] | None = None,
        budget: float = BUDGET,
        max_steps: int = 12,
    ) -> None:
        self.moves = [[place] for place in range(len(graph.calls))] + graph.groups
        self._graph, self._budget, self._max_steps = graph, budget, max_steps
        self._error_of = error or graph.error
        self._features = np.stack([graph.features[each].mean(0) for each in self.moves])
        shape = (len(self.moves), self._features.shape[1] + _NUM_RUNGS + 4)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(_NUM_RUNGS * len(self.moves))
        self.rungs = np.zeros(len(graph.calls), np.int8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin in float32, or with `options["rungs"]`, an assignment that is known to keep the budget."""
        super().reset(seed=seed)
        self.rungs = np.array((options or {}).get("rungs", np.zeros(len(self._graph.calls))), np.int8)
        self._num_steps, self._best, self._over = 0, self._share(), -_MOST_OVER
        return self._observed(), self._info()

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Change the rung of a move; without any change nothing is asked for."""
        move, rung = divmod(int(action), _NUM_RUNGS)
        places = [place for place in self.moves[move] if self._graph.legal[place, rung]]
        reward = 0.0
        if (self.rungs[places] != rung).any():
            self.rungs[places] = rung
            error = self._error_of(tuple(map(int, self.rungs)))
            self._over = float(np.clip(np.log10(max(error, 1e-9) / self._budget), -_MOST_OVER, _MOST_OVER))
            if error <= self._budget:
                reward = max(0.0, self._best - self._share())
                self._best -= reward
        self._num_steps += 1
        return self._observed(), reward, False, self._num_steps >= self._max_steps, self._info()

    def _share(self) -> float:
        return float(self._graph.us(self.rungs[None])[0]) / self._graph.float32_us

    def _observed(self) -> Array:
        one_hot = np.eye(_NUM_RUNGS)[self.rungs]
        shares = np.stack([one_hot[each].mean(0) for each in self.moves])
        whole = [self._share(), self._best, self._over, self._num_steps / self._max_steps]
        repeated = np.broadcast_to(whole, (len(self.moves), len(whole)))
        return np.concatenate([self._features, shares, repeated], 1).astype(np.float32)

    def _info(self) -> dict[str, Any]:
        """What each action would change: bool [4 M]."""
        changes = self._graph.legal & (np.arange(_NUM_RUNGS) != self.rungs[:, None])
        return {"changes": np.concatenate([changes[each].any(0) for each in self.moves])}
