"""Episodes of any Gymnasium environment, played at random through the contract of our collectors.

It is there to compare collectors, not to learn: nothing but environment and collecting costs time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from torchrlopt import _C
from torchrlopt.substitutions import load_library
from training.episodes.random_keys import generator
from training.graphs.curriculum import sample_graph


def rewrite_env() -> gymnasium.Env[Any, Any]:
    """Rewriting a small graph, with observations that are not padded much."""
    from torchrlopt.env import Padding, RewriteEnv

    graph = sample_graph(0, 3).graph
    return RewriteEnv([graph], load_library(), _C.CostModel(), max_steps=30, padding=Padding(64, 128, 64))


def cart_pole() -> gymnasium.Env[Any, Any]:
    """Gymnasium's own."""
    return gymnasium.make("CartPole-v1").unwrapped


ENVIRONMENTS: dict[str, Callable[[], gymnasium.Env[Any, Any]]] = {
    "CartPole-v1": cart_pole,
    "RewriteEnv": rewrite_env,
}
MAX_STEPS = 500


@dataclasses.dataclass(frozen=True)
class GymTask:
    """See `training.collectors.worker.Task`; a key is a number, and its result `Episode`.

    Attributes:
        environment: a name in `ENVIRONMENTS`.
    """

    environment: str

    def player(self) -> GymPlayer:
        """See `Task`."""
        return GymPlayer(self)


@dataclasses.dataclass(frozen=True)
class Episode:
    """T steps of an episode.

    Attributes:
        observations: [T + 1, ...], by name.
        actions: [T].
        rewards: [T].
        terminated: whether it ended by itself.
    """

    observations: dict[str, np.ndarray]
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool


class GymPlayer:
    """See `training.collectors.worker.Player`.

    Args:
        task: whose episodes it plays.
    """

    def __init__(self, task: GymTask) -> None:
        self._env = ENVIRONMENTS[task.environment]()

    def load(self, state: bytes) -> None:
        """Nothing plays but chance."""

    def play(self, key: int) -> Episode:
        """The episode of a key."""
        env, rng = self._env, generator(key)
        seen = [env.reset(seed=int(rng.integers(2**31)))[0]]
        actions: list[int] = []
        rewards: list[float] = []
        terminated = truncated = False
        while not (terminated or truncated) and len(actions) < MAX_STEPS:
            action = rng.integers(env.action_space.n)  # type: ignore[attr-defined]
            observation, reward, terminated, truncated, _ = env.step(action)
            seen.append(observation)
            actions.append(action)
            rewards.append(float(reward))
        each = [observation if isinstance(observation, dict) else {"": observation} for observation in seen]
        columns = {name: np.stack([row[name] for row in each]) for name in each[0]}
        return Episode(columns, np.array(actions), np.array(rewards), bool(terminated))
