"""The thesis's decision process (Mayer 2023, sections 3.2.2 and 3.2.3), played by drivers.

A state is a point; an action is its next first coordinate, cut at the domain; the second coordinate, the free
parameter, stays. A step earns what the function has fallen by. An episode ends after a number of steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchrlopt.agent.rollout import Rollout
from training.collectors.worker import state_from
from training.episodes.random_keys import Purpose, generator, normal
from training.learn_to_optimise.functions import FUNCTIONS, deviation
from training.learn_to_optimise.policy import GaussianPolicy
from training.samplers import Place, draw_points

POOL = 100  # random start states of which uncertainty sampling takes one


def new_policy(function: str) -> GaussianPolicy:
    """The networks of the task, untrained: two hidden layers of 64 for policy and value each."""
    return GaussianPolicy(2, 1, 64, deviation(function))


@dataclasses.dataclass(frozen=True)
class DriverKey:
    """Names the episodes that one driver plays in one update.

    Attributes:
        seed: of the run.
        update: its number.
        driver: number of the driver.
    """

    seed: int
    update: int
    driver: int


@dataclasses.dataclass(frozen=True)
class DriverTask:
    """See `training.collectors.worker.Task`; its results are rollouts.

    Attributes:
        function: a name in `FUNCTIONS`.
        sampler: of start states, a name in `training.samplers.SAMPLERS`.
        drivers: of an update.
        episodes: of each driver; they are played side by side.
        steps: of an episode.
    """

    function: str
    sampler: str = "random"
    drivers: int = 3
    episodes: int = 10
    steps: int = 2

    def keys(self, seed: int, update: int) -> list[DriverKey]:
        """Of all drivers of an update."""
        return [DriverKey(seed, update, driver) for driver in range(self.drivers)]

    def player(self) -> DriverPlayer:
        """See `Task`."""
        return DriverPlayer(self)

    @torch.no_grad()
    def play(self, policy: GaussianPolicy, key: DriverKey) -> Rollout:
        """The episodes of a key, [steps, episodes]."""
        of = FUNCTIONS[self.function]

        def doubt(units: np.ndarray) -> np.ndarray:
            return policy.entropy(torch.from_numpy(units * 2 - 1)).numpy()

        place = Place(key.seed, key.update, key.driver, self.drivers, self.episodes)
        points = draw_points(self.sampler, place, 2, doubt, POOL) * 2 - 1
        rng = generator(Purpose.EPISODE, key.seed, key.update, key.driver)
        noise = normal([rng] * self.episodes)
        height = of(points)
        rows: list[tuple[Tensor, ...]] = []
        for _ in range(self.steps):
            states = torch.from_numpy(points)
            actions, told = policy.act(states, noise)
            points = np.stack([actions[:, 0].clamp(-1, 1).numpy(), points[:, 1]], axis=-1)
            fallen, height = height - of(points), of(points)
            rows.append((states, actions, told.log_prob, torch.from_numpy(fallen), told.value))
        states_seen, *columns = zip(*rows, strict=True)
        acted, log_probs, rewards, values = (torch.stack(column) for column in columns)
        ended = torch.zeros(self.steps, self.episodes, dtype=torch.bool)
        ended[-1] = True
        # The episode is over then: the thesis's agent has so many steps and no more.
        return Rollout(
            list(states_seen),
            acted,
            log_probs,
            rewards,
            torch.cat([values, torch.zeros_like(values[:1])]),
            terminated=ended,
            ended=ended,
            active=torch.ones_like(ended),
            group=key.driver,
        )


class DriverPlayer:
    """See `training.collectors.worker.Player`.

    Args:
        task: whose episodes it plays.
    """

    def __init__(self, task: DriverTask) -> None:
        self._task = task
        self._policy = new_policy(task.function)

    def load(self, state: bytes) -> None:
        """All weights."""
        self._policy.load_state_dict(state_from(state))

    def play(self, key: DriverKey) -> Rollout:
        """See `DriverTask.play`."""
        return self._task.play(self._policy, key)


def merged(rollouts: Sequence[Rollout]) -> Rollout:
    """All episodes of an update side by side, so that each is compared with all others."""
    steps = range(len(rollouts[0].rewards))
    names = ("actions", "log_probs", "rewards", "values", "terminated", "ended", "active")
    columns = {name: torch.cat([getattr(each, name) for each in rollouts], dim=1) for name in names}
    return Rollout([torch.cat([each.states[t] for each in rollouts]) for t in steps], **columns)
