"""Agents trained in a world model (rows WM and WM+), and how they act on real graphs.

An agent has three parts: an encoder that embeds each graph, the world model, whose recurrent network
remembers the episode, and a policy on the output of that network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from torchrlopt.agent.networks.actions import (
    KEPT_GLOBALS,
    Choices,
    Draw,
    LatentState,
    Legal,
    kinds_of,
    no_noise,
)
from torchrlopt.agent.networks.agent_network import AgentConfig, features_of
from torchrlopt.agent.observation import Observation, Schema
from training.networks.candidate_controller import Decision
from training.networks.encoders import ENCODERS
from training.networks.two_stage_controller import TwoStageController
from training.world.discrete_model import DiscreteModel
from training.world.mixture_model import MixtureModel
from training.world.world_model import WorldModel
from training.world.world_state import WorldState

#: World models by row, constructed from the feature width and the substitution embeddings.
MODELS: dict[str, Callable[[int, Tensor], WorldModel]] = {"wm": MixtureModel, "wm_plus": DiscreteModel}


@dataclasses.dataclass(frozen=True)
class LatentConfig(AgentConfig):
    """Sizes of a `LatentController`.

    Attributes:
        row: a name in `MODELS`.
        encoder: a name in `training.networks.encoders.ENCODERS`.
    """

    row: str = "wm"
    encoder: str = "graph_network"


class LatentController(nn.Module):
    """Encoder, world model and policy in one module.

    Args:
        schema: the columns.
        config: sizes of the networks.
        names: names of the S substitutions that it was trained with; it applies no others.
        rules: [S, D], their embeddings; None for zeros, to be loaded later.
    """

    def __init__(
        self,
        schema: Schema,
        config: LatentConfig,
        names: Sequence[str],
        rules: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.schema = schema
        self.config = config
        self.names = tuple(names)
        given = torch.zeros(len(names), config.rule_width) if rules is None else rules
        kinds = kinds_of(given, config.has_macros)
        self.encoder = ENCODERS[config.encoder](schema, config.width)
        self.model = MODELS[config.row](config.width + len(KEPT_GLOBALS), kinds)
        self.policy = TwoStageController(self.model.state_width, kinds)

    def chooser(self, policy: LatentPolicy | None = None) -> LatentChooser:
        """Return a chooser with which this or another policy acts on real graphs."""
        return LatentChooser(self.encoder, self.model, policy or self.policy, self.config.has_macros)


class LatentPolicy(Protocol):
    """Chooses (substitution, rank) in latent states."""

    def act(self, states: LatentState, draw: Draw) -> tuple[Tensor, Decision]:
        """Return actions [B, 2] and their evaluation."""
        ...


class LatentChooser:
    """Lets a latent policy act on real graphs and records its observations.

    After each real step, the world model makes the same step (`WorldModel.follow`), so that its memory tracks
    the episode.

    Args:
        encoder: frozen encoder of graphs.
        model: the world model; its weights are not changed.
        policy: `TwoStageController`, or a uniform policy.
        has_macros: see `AgentConfig`.

    Attributes:
        seen: features [B, G], legal actions and savings of the actions [B], for every step.
    """

    def __init__(
        self,
        encoder: nn.Module,
        model: WorldModel,
        policy: LatentPolicy,
        has_macros: bool = False,
    ) -> None:
        self.has_macros = has_macros
        self.seen: list[tuple[Tensor, Legal, Tensor]] = []
        self._encoder = encoder
        self._model = model
        self._policy = policy
        # `follow` replaces the sampled latent by the real one, so the seed does not matter.
        self._generator = torch.Generator().manual_seed(0)
        self._state: WorldState | None = None
        self._last: tuple[Tensor, Tensor] | None = None

    def choose(self, seen: Observation, draw: Draw) -> tuple[Any, Tensor, Tensor, Decision]:
        """Return the policy's observation, its actions, the same as actions of the core, and its decision."""
        features, choices = features_of(self._encoder, seen), self._choices(seen)
        if self._state is None or self._last is None:
            self._state = self._model.start(features, choices.legal)
        else:
            self._state = self._model.follow(
                self._state, *self._last, features, choices.legal, self._generator
            )
        states = self._state.observed()
        actions, decision = self._policy.act(states, draw)
        rows = choices.rows_of(actions)
        saved = choices.savings_of(rows)
        self._last = actions, saved
        self.seen.append((features, choices.legal, saved))
        return states, actions, rows, decision

    def entropy(self, seen: Observation) -> float:
        """Return the entropy of the policy's first choice in an episode."""
        choices = self._choices(seen)
        state = self._model.start(features_of(self._encoder, seen), choices.legal).observed()
        return float(self._policy.act(state, no_noise)[1].entropy)

    def _choices(self, seen: Observation) -> Choices:
        return Choices(seen, self._model.num_substitutions, self.has_macros)
