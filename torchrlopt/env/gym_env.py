"""One episode at a time, as a Gymnasium `Env`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from torchrlopt import _C
from torchrlopt.env.gym_padding import Padding, to_core
from torchrlopt.env.observation import Arrays, Observer
from torchrlopt.env.reward import OUTCOMES, Reward, best_so_far


class RewriteEnv(gymnasium.Env[dict[str, Any], np.int64]):
    """Rewriting as a Markov decision process: an action is a candidate, or stop.

    Args:
        graphs: what episodes may begin with; `reset(options={"graph": i})` chooses, otherwise it is drawn.
        library: the substitutions that may be used.
        cost: prices.
        max_steps: after so many an episode is truncated.
        reward: see `torchrlopt.env.reward`.
        padding: the sizes of observations.
        exact_only: bit-exact substitutions only.

    Raises:
        EnvError: no graph is given.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own form

    def __init__(
        self,
        graphs: Sequence[_C.Graph],
        library: _C.Library,
        cost: _C.CostModel,
        *,
        max_steps: int = 100,
        reward: Reward = best_so_far,
        padding: Padding | None = None,
        exact_only: bool = False,
    ) -> None:
        self.core = _C.VecRewriteEnv(list(graphs), library, cost, max_steps=max_steps, exact_only=exact_only)
        self.padding = padding or Padding()
        self.observation_space = self.padding.space()
        self.action_space = gymnasium.spaces.Discrete(self.padding.candidates + 1)
        self._observer = Observer(self.core)
        self._reward = reward
        self._counts = np.zeros(1, dtype=np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: of the choice of graphs.
            options: graph, prefix, random_steps and seed of `_C.VecRewriteEnv.reset`, each optional.

        Raises:
            EnvError: there is no such graph, or a step of the prefix does not apply.
        """
        super().reset(seed=seed)
        start = {"graph": int(self.np_random.integers(self.core.num_graphs)), **(options or {})}
        self.core.reset([0], [start])
        return self._observe(), self._info()

    def step(self, action: np.int64) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        """Take a candidate by its row; `padding.candidates` stops. An illegal action changes nothing."""
        before = self.core.outcomes()
        after = self.core.step(to_core(np.asarray([action]), self._counts, self.padding))
        reward = float(self._reward(before, after)[0])
        terminated, truncated = (bool(after[0, OUTCOMES[name]]) for name in ("terminated", "truncated"))
        return self._observe(), reward, terminated, truncated, self._info()

    def _observe(self) -> Arrays:
        arrays = self._observer.observe()
        self._counts = np.diff(arrays["candidate_offsets"])
        return {name: array[0] for name, array in self.padding.pad(arrays, 1).items()}

    def _info(self) -> dict[str, Any]:
        return {name: float(self.core.outcomes()[0, column]) for name, column in OUTCOMES.items()}

    @property
    def graph(self) -> _C.Graph:
        """The graph as it is now."""
        return self.core.graph(0)

    @property
    def steps(self) -> list[tuple[str, int]]:
        """(substitution, location) of all steps from the original graph: what a plan holds."""
        return self.core.steps(0)
