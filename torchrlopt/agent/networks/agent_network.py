"""The networks of an agent in one module, and how they act on real graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchrlopt.agent.networks.actions import KEPT_GLOBALS, Choices, Draw, LatentState, kinds_of
from torchrlopt.agent.networks.encoder import GraphNetworkEncoder
from torchrlopt.agent.networks.memory import Memory
from torchrlopt.agent.networks.policy import TwoStagePolicy
from torchrlopt.agent.observation import Observation, Schema


@dataclasses.dataclass(frozen=True)
class AgentConfig:
    """Sizes of an `AgentNetwork`.

    Attributes:
        width: width of graph embeddings.
        rule_width: D, width of substitution embeddings.
        has_macros: whether one action may apply a substitution at a whole class of symmetric locations: the
            networks then see each substitution as two, at one location and at all of a class.
    """

    width: int = 32
    rule_width: int = 32
    has_macros: bool = False


class AgentNetwork(nn.Module):
    """Encoder, memory and policy.

    Args:
        schema: the columns.
        config: sizes of the networks.
        names: names of the S substitutions that it was trained with; it applies no others.
    """

    def __init__(self, schema: Schema, config: AgentConfig, names: Sequence[str]) -> None:
        super().__init__()
        self.schema = schema
        self.config = config
        self.names = tuple(names)
        kinds = kinds_of(torch.zeros(len(names), config.rule_width), config.has_macros)
        self.encoder = GraphNetworkEncoder(schema, config.width)
        self.model = Memory(config.width + len(KEPT_GLOBALS), kinds)
        self.policy = TwoStagePolicy(self.model.state_width, kinds)

    def rows_of(self, names: Sequence[str]) -> Tensor:
        """Return the index of each substitution among the known ones, -1 if unknown: [len(names)]."""
        known = {name: row for row, name in enumerate(self.names)}
        return torch.tensor([known.get(name, -1) for name in names], dtype=torch.int64)


def features_of(encoder: nn.Module, seen: Observation) -> Tensor:
    """Return the features of graphs, [B, G]: their embeddings and `KEPT_GLOBALS`."""
    kept = torch.stack([seen.column("global", name) for name in KEPT_GLOBALS], dim=1)
    return torch.cat([encoder(seen)[1], kept], dim=1)


class Player:
    """Acts on real graphs; after each step, the memory makes the same step.

    Args:
        network: the networks.
        rows: see `Choices`.
    """

    def __init__(self, network: AgentNetwork, rows: Tensor) -> None:
        self._network = network
        self._rows = rows
        self._hidden: Tensor | None = None
        self._inputs: Tensor | None = None  # of the recurrent network, for the last actions

    def choose(self, seen: Observation, draw: Draw) -> Tensor:
        """Return the actions of the core [B] that the policy draws."""
        network, memory = self._network, self._network.model
        choices = Choices(seen, memory.num_substitutions, network.config.has_macros, self._rows)
        z, situation = memory.encode(features_of(network.encoder, seen)), memory.situation(choices.legal)
        if self._inputs is None:
            self._hidden = z.new_zeros(len(z), memory.hidden)
        else:
            self._hidden = memory.gru(self._inputs, self._hidden)
        states = LatentState(torch.cat([z, self._hidden, situation], dim=-1), choices.legal)
        actions = network.policy.choose(states, draw)[0]
        rows = choices.rows_of(actions)
        self._inputs = memory.inputs(z, situation, actions, choices.savings_of(rows))
        return rows
