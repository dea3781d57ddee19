"""Where imagined episodes are, and what a world model predicts of a step."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from torchrlopt.agent.networks.two_stage_controller import LatentState, Legal


@dataclasses.dataclass(frozen=True)
class WorldState:
    """Where B imagined episodes are.

    Attributes:
        z: [B, Z], the latent that stands for the graph.
        hidden: [B, H], output of the recurrent network after the last action; 0 before the first one.
        memory: what the recurrent network carries to its next step beside `hidden`; empty for a GRU.
        legal: which substitutions can be applied, at how many locations, and what they save.
        situation: [B, 2 D], `legal` summed up as two vectors; see `WorldModel.situation`.
        costs: [B, 2], cost of the graph, and the lowest cost in the episode so far, as shares of the first.
    """

    z: Tensor
    hidden: Tensor
    memory: tuple[Tensor, ...]
    legal: Legal
    situation: Tensor
    costs: Tensor

    def observed(self) -> LatentState:
        """What a policy is shown: latent, network output and situation as one vector, and what is legal."""
        features = torch.cat([self.z, self.hidden, self.situation], dim=-1)
        return LatentState(features, self.legal)

    def unless(self, rows: Tensor, other: WorldState) -> WorldState:
        """This state, with the episodes of the other state where `rows` [B], bool, is true."""

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
    """What a model predicts of a step.

    Attributes:
        reward: [B].
        done: [B], probability that the episode is over after it.
        doubt: [B], how far the members of an ensemble disagree on the next latent; 0 for a single network.
    """

    reward: Tensor
    done: Tensor
    doubt: Tensor
