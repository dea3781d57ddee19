"""Episodes as a learner reads them; real and imagined ones have the same form."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor


@dataclasses.dataclass
class Rollout:
    """B episodes of at most T steps, side by side.

    Attributes:
        states: T batches of B states, what the policy was shown.
        actions: [T, B, ...].
        log_probs: [T, B], of the actions, by the policy that drew them.
        rewards: [T, B].
        values: [T + 1, B], the policy's; the last row is for the states after the last step.
        terminated: [T, B], bool: the episode is over, nothing more can be earned.
        ended: [T, B], bool: terminated, or cut off.
        active: [T, B], bool: this step was taken; False after the end of an episode.
        group: number of the graph and start that the episodes share; they are compared with each other.
        info: for logs, [B] each.
    """

    states: list[Any]
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    values: Tensor
    terminated: Tensor
    ended: Tensor
    active: Tensor
    group: int = 0
    info: dict[str, Tensor] = dataclasses.field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """Steps that were taken."""
        return int(self.active.sum())

    @property
    def returns(self) -> Tensor:
        """[B], sum of rewards per row; with `begins_anew` over several episodes."""
        return (self.rewards * self.active).sum(0)


class RolloutBuilder:
    """Collects steps until all episodes have ended.

    Args:
        batch: B.
        begins_anew: as soon as an episode has ended, another begins in its place, so that every step counts.
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
        """Add one step of all episodes. What is said of episodes that have ended before is left out."""
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

    def finish(self, last_values: Tensor, group: int = 0, info: dict[str, Tensor] | None = None) -> Rollout:
        """The rollout.

        Args:
            last_values: [B], of the states after the last step.
            group: see `Rollout`.
            info: see `Rollout`.
        """
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
            group,
            info or {},
        )
