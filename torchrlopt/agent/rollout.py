"""Episodes as a learner sees them: the same form for real ones and for imagined ones."""

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
        log_probs: [T, B], of the actions when they were drawn.
        rewards: [T, B].
        values: [T + 1, B]; the last row is of the states after the last step.
        terminated: [T, B], bool: the episode is over, nothing more can be earned.
        ended: [T, B], bool: terminated, or cut off.
        active: [T, B], bool: a real step; False after the end.
        group: what the episodes have in common: advantages are compared within a group.
        info: of the episodes, for logs; [B] each.
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
        """Real steps, those after an end left out."""
        return int(self.active.sum())

    @property
    def returns(self) -> Tensor:
        """[B], sum of the rewards of each episode; of all in one place where they follow each other."""
        return (self.rewards * self.active).sum(0)


class RolloutBuilder:
    """Collects steps until all episodes have ended.

    Args:
        batch: B.
        begins_anew: another episode follows in its place as soon as one has ended, so that every step counts.
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
        """One step of all episodes; what ended episodes report is ignored."""
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
