"""Recorded real episodes, in the form that a world model learns from."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torchrlopt.agent.networks.two_stage_controller import Legal

NUM_COSTS = 2  # features at the end: cost and lowest cost so far


@dataclasses.dataclass(frozen=True)
class Sequences:
    """B recorded episodes of T steps, the short ones padded.

    Attributes:
        features: [B, T + 1, G], what is seen of the graphs: embeddings, at the end cost and lowest cost so
            far, as shares of the first; see `torchrlopt.agent.world.latent_controller.features_of`.
        actions: [B, T, 2], substitution (S for stop) and rank among its legal locations.
        rewards: [B, T].
        terminated: [B, T], bool.
        mask: [B, T + 1, S + 1], bool, stop last.
        num_locations: [B, T + 1, S], of any integer type.
        savings: [B, T + 1, S], see `Legal`, of any floating type.
        taken: [B, T], what the action saved at its own location, squashed.
        valid: [B, T], bool: this step was taken; False in the padding.
    """

    features: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    mask: Tensor
    num_locations: Tensor
    savings: Tensor
    taken: Tensor
    valid: Tensor

    def legal(self, index: Any) -> Legal:
        """What was legal in some of the [B, T + 1] states."""
        return Legal(self.mask[index], self.num_locations[index].long(), self.savings[index].float())

    @property
    def costs(self) -> Tensor:
        """[B, T, 2], before each step: cost and lowest cost so far."""
        return self.features[:, :-1, -NUM_COSTS:]

    def select(self, rows: Tensor) -> Sequences:
        """Some of the episodes."""
        return Sequences(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))

    def padded(self, steps: int) -> Sequences:
        """The same, with so many steps of padding at the end."""

        def grown(values: Tensor) -> Tensor:
            return torch.cat([values, values[:, -1:].repeat_interleave(steps, dim=1)], dim=1)

        more = Sequences(*(grown(getattr(self, field.name)) for field in dataclasses.fields(self)))
        return dataclasses.replace(more, valid=F.pad(self.valid, (0, steps)))
