"""A Gymnasium `Env` with one episode: a `RewriteVectorEnv` of size one without autoreset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from torchrlopt import _C
from torchrlopt.env.gym_padding import Padding
from torchrlopt.env.gym_vector_env import RewriteVectorEnv
from torchrlopt.env.observation import Arrays
from torchrlopt.env.reward import OUTCOMES, Reward, best_so_far


class RewriteEnv(gymnasium.Env[dict[str, Any], np.int64]):
    """Rewriting as a Markov decision process: an action is a candidate or stop.

    Args:
        graphs: initial graphs; `reset(options={"graph": i})` selects one, otherwise it is drawn at random.
        library: the substitutions that may be applied.
        cost: the cost model.
        max_steps: number of steps after which an episode is truncated.
        reward: see `torchrlopt.env.reward`.
        padding: sizes of the observations.
        exact_only: allow bit-exact substitutions only.
        has_macros: offer a substitution at a whole class of similar places as one action, too.

    Raises:
        EnvError: `graphs` is empty.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - required by Gymnasium

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
        has_macros: bool = False,
    ) -> None:
        self._vector = RewriteVectorEnv(
            graphs,
            library,
            cost,
            1,
            max_steps=max_steps,
            reward=reward,
            padding=padding,
            autoreset_mode=AutoresetMode.DISABLED,
            exact_only=exact_only,
            has_macros=has_macros,
        )
        self.core = self._vector.core
        self.padding = self._vector.padding
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: seed of the choice of graphs.
            options: graph, prefix, random_steps and seed as in `_C.VecRewriteEnv.reset`, each optional.

        Raises:
            EnvError: the graph does not exist, or a step of the prefix does not apply.
        """
        super().reset(seed=seed)
        start = {"graph": int(self.np_random.integers(self.core.num_graphs)), **(options or {})}
        observation, info = self._vector.reset(options={"starts": [start]})
        return _only(observation), _named(info)

    def step(self, action: np.int64) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        """Apply the candidate in row `action`; `padding.candidates` stops. An illegal action is a no-op."""
        observation, rewards, terminated, truncated, info = self._vector.step(np.asarray([action]))
        return _only(observation), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), _named(info)

    @property
    def graph(self) -> _C.Graph:
        """The current graph."""
        return self.core.graph(0)

    @property
    def steps(self) -> list[tuple[str, int]]:
        """(substitution, location) of all steps from the original graph, as in a plan."""
        return self.core.steps(0)


def _only(observation: Arrays) -> Arrays:
    """Return the observation of the single episode."""
    return {name: array[0] for name, array in observation.items()}


def _named(info: dict[str, Any]) -> dict[str, float]:
    """Return the outcomes of the single episode, by name."""
    return {name: float(info[name][0]) for name in OUTCOMES}
