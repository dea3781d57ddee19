"""Recorded real episodes, the training data of a world model."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torchrlopt.agent.networks.actions import Legal

NUM_COSTS = 2  # features at the end: cost and lowest cost so far


@dataclasses.dataclass(frozen=True)
class Sequences:
    """B recorded episodes of T steps; shorter ones are padded.

    Attributes:
        features: [B, T + 1, G], features of the graphs: embeddings, then the cost and the lowest cost so far
            as fractions of the initial cost; see `torchrlopt.agent.networks.agent_network.features_of`.
        actions: [B, T, 2], substitution (S for stop) and rank among its legal locations.
        rewards: [B, T].
        terminated: [B, T], bool.
        mask: [B, T + 1, S + 1], bool: legal substitutions, stop last.
        num_locations: [B, T + 1, S], of any integer type.
        savings: [B, T + 1, S], see `Legal`, of any floating type.
        taken: [B, T], saving of the action at its own location, squashed.
        valid: [B, T], bool: the step was taken; False in the padding.
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
        """Return the legal actions of some of the [B, T + 1] states."""
        return Legal(self.mask[index], self.num_locations[index].long(), self.savings[index].float())

    @property
    def costs(self) -> Tensor:
        """[B, T, 2], before each step: cost and lowest cost so far."""
        return self.features[:, :-1, -NUM_COSTS:]

    def select(self, rows: Tensor) -> Sequences:
        """Select some of the episodes."""
        return Sequences(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))

    def padded(self, steps: int) -> Sequences:
        """Append this many steps of padding."""

        def grown(values: Tensor) -> Tensor:
            return torch.cat([values, values[:, -1:].repeat_interleave(steps, dim=1)], dim=1)

        more = Sequences(*(grown(getattr(self, field.name)) for field in dataclasses.fields(self)))
        return dataclasses.replace(more, valid=F.pad(self.valid, (0, steps)))
