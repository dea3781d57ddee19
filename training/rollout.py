"""Rollouts: episodes for a learner, real or imagined, in one format."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor


@dataclasses.dataclass
class Rollout:
    """A batch of B episodes of at most T steps.

    Attributes:
        states: T batches of B states, as observed by the policy.
        actions: [T, B, ...].
        log_probs: [T, B], log-probabilities of the actions under the policy that drew them.
        rewards: [T, B].
        values: [T + 1, B], estimates of the policy; the last row is for the states after the last step.
        terminated: [T, B], bool: the episode is over, no further reward is possible.
        ended: [T, B], bool: terminated or truncated.
        active: [T, B], bool: the step was taken; False after the end of an episode.
    """

    states: list[Any]
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    values: Tensor
    terminated: Tensor
    ended: Tensor
    active: Tensor

    @property
    def num_steps(self) -> int:
        """Number of steps taken."""
        return int(self.active.sum())

    @property
    def returns(self) -> Tensor:
        """[B], sum of rewards per row; over several episodes with `begins_anew`."""
        return (self.rewards * self.active).sum(0)


class RolloutBuilder:
    """Collects steps until all episodes have ended.

    Args:
        batch: B.
        begins_anew: whether a new episode replaces each one that ends, so that every step counts.
    """

    def __init__(self, batch: int, *, begins_anew: bool = False) -> None:
        self._begins_anew = begins_anew
        self.alive = torch.ones(batch, dtype=torch.bool)
        self._states: list[Any] = []
        self._rows: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]] = []

    def add(
        self,
        states: Any,
        actions: Tensor,
        log_probs: Tensor,
        values: Tensor,
        rewards: Tensor,
        terminated: Tensor,
        ended: Tensor,
    ) -> None:
        """Add one step of all episodes. Values of episodes that ended earlier are ignored."""
        self._states.append(states)
        zero = torch.zeros((), dtype=rewards.dtype)
        self._rows.append(
            (
                actions,
                log_probs.detach(),
                torch.where(self.alive, rewards, zero),
                values.detach(),
                terminated & self.alive,
                ended & self.alive,
                self.alive.clone(),
            )
        )
        if not self._begins_anew:
            self.alive = self.alive & ~ended

    def finish(self, last_values: Tensor) -> Rollout:
        """Return the rollout, given the values [B] of the states after the last step."""
        actions, log_probs, rewards, values, terminated, ended, active = (
            torch.stack(column) for column in zip(*self._rows, strict=True)
        )
        return Rollout(
            self._states,
            actions,
            log_probs,
            rewards,
            torch.cat([values, last_values.detach().unsqueeze(0)]),
            terminated,
            ended,
            active,
        )
