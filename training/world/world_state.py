"""The state of imagined episodes, and a world model's prediction of a step."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from torchrlopt.agent.networks.actions import LatentState, Legal


@dataclasses.dataclass(frozen=True)
class WorldState:
    """The state of B imagined episodes.

    Attributes:
        z: [B, Z], the latent that stands for the graph.
        hidden: [B, H], output of the recurrent network after the last action; 0 before the first one.
        memory: further state of the recurrent network, in addition to `hidden`; empty for a GRU.
        legal: the legal substitutions, their numbers of locations and their savings.
        situation: [B, 2 D], summary of `legal` as two vectors; see `WorldModel.situation`.
        costs: [B, 2], cost of the graph and lowest cost in the episode so far, as fractions of the initial
            cost.
    """

    z: Tensor
    hidden: Tensor
    memory: tuple[Tensor, ...]
    legal: Legal
    situation: Tensor
    costs: Tensor

    def observed(self) -> LatentState:
        """Return what a policy observes: latent, network output and situation in one vector, and `legal`."""
        features = torch.cat([self.z, self.hidden, self.situation], dim=-1)
        return LatentState(features, self.legal)

    def unless(self, rows: Tensor, other: WorldState) -> WorldState:
        """Replace the episodes for which `rows` [B], bool, is true by those of the other state."""

        def mixed(mine: Tensor, others: Tensor) -> Tensor:
            return torch.where(rows.unsqueeze(-1), others, mine)

        names = (field.name for field in dataclasses.fields(Legal))
        return WorldState(
            mixed(self.z, other.z),
            mixed(self.hidden, other.hidden),
            tuple(map(mixed, self.memory, other.memory)),
            Legal(*(mixed(getattr(self.legal, name), getattr(other.legal, name)) for name in names)),
            mixed(self.situation, other.situation),
            mixed(self.costs, other.costs),
        )


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A model's prediction of a step.

    Attributes:
        reward: [B], predicted reward.
        done: [B], probability that the episode is over after it.
        doubt: [B], disagreement of the ensemble on the next latent; 0 for a single network.
    """

    reward: Tensor
    done: Tensor
    doubt: Tensor
