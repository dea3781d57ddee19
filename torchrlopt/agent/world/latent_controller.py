"""Agents that were trained in a world model (the rows WM and WM+), and how they play real graphs.

Three parts: an encoder that makes an embedding of each graph, the world model, whose recurrent network
remembers the episode, and a policy that chooses by what that network gives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchrlopt.agent.networks.candidate_controller import Decision, Draw, no_noise
from torchrlopt.agent.networks.encoder import ENCODERS
from torchrlopt.agent.networks.two_stage_controller import (
    MAX_LOCATIONS,
    LatentState,
    Legal,
    TwoStageController,
    squashed,
)
from torchrlopt.agent.observation import Observation, Schema
from torchrlopt.agent.world.discrete_model import DiscreteModel
from torchrlopt.agent.world.mixture_model import MixtureModel
from torchrlopt.agent.world.world_model import WorldModel
from torchrlopt.agent.world.world_state import WorldState

#: Rewards depend on these two, and an embedding need not hold them exactly. So they are given to the world
#: model as they are, as the last two of its features.
KEPT_GLOBALS = ("cost", "best_cost")
#: World models by row, made of the width of features and the embeddings of substitutions.
MODELS: dict[str, Callable[[int, Tensor], WorldModel]] = {"wm": MixtureModel, "wm_plus": DiscreteModel}


@dataclasses.dataclass(frozen=True)
class LatentConfig:
    """Sizes of a `LatentController`.

    Attributes:
        row: a name in `MODELS`.
        encoder: a name in `torchrlopt.agent.networks.encoder.ENCODERS`.
        width: G, of graph embeddings.
        rule_width: D, of embeddings of substitutions.
        has_macros: whether a whole class of like places may be taken at once: then each substitution is two
            that the networks know, at one place and at all of a class.
    """

    row: str = "wm"
    encoder: str = "graph_network"
    width: int = 32
    rule_width: int = 32
    has_macros: bool = False


class LatentController(nn.Module):
    """Encoder, world model and policy in one module.

    Args:
        schema: the columns.
        config: sizes.
        names: of the S substitutions that it was trained with; it applies no others.
        rules: [S, D], their embeddings; zeros, to be loaded later, if None.
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

    def chooser(self, policy: LatentPolicy | None = None, rows: Tensor | None = None) -> LatentChooser:
        """What lets this policy, or another one, play real graphs.

        Args:
            policy: the own one if None.
            rows: see `Choices`.
        """
        chosen = self.policy if policy is None else policy
        return LatentChooser(self.encoder, self.model, chosen, self.config.has_macros, rows)

    def rows_of(self, names: Sequence[str]) -> Tensor:
        """Position of each substitution of a library among those known here, -1 for others: [len(names)]."""
        known = {name: row for row, name in enumerate(self.names)}
        return torch.tensor([known.get(name, -1) for name in names], dtype=torch.int64)


def kinds_of(rules: Tensor, has_macros: bool) -> Tensor:
    """Embeddings of all kinds of steps but stop, of those [S, D] of the substitutions.

    With macros [2 S, D + 1]: each substitution at one place, then each at a class of them. The last column
    tells which.
    """
    if not has_macros:
        return rules
    one = rules.new_full((len(rules), 1), -1.0)
    return torch.cat([torch.cat([rules, one], 1), torch.cat([rules, -one], 1)])


def features_of(encoder: nn.Module, seen: Observation) -> Tensor:
    """What a world model sees of graphs: their embeddings and `KEPT_GLOBALS`, [B, G]."""
    kept = torch.stack([seen.column("global", name) for name in KEPT_GLOBALS], dim=1)
    return torch.cat([encoder(seen)[1], kept], dim=1)


class Choices:
    """Translates between candidates of the core and actions of a policy, for B episodes.

    The core numbers the candidates of an episode. The policy says (substitution, rank): the rank counts the
    locations of the substitution in the order of the candidates. Where the environment offers macros, a class
    of locations counts as a location of a substitution of its own, see `kinds_of`.

    Args:
        seen: the episodes.
        num_substitutions: S, those that the policy knows; 2 S with macros.
        has_macros: whether the environment offers them.
        rows: [S'], position of each substitution of the environment's library among them, -1 for unknown
            ones; None where both are the same.

    Attributes:
        legal: of [B] states.
    """

    def __init__(
        self,
        seen: Observation,
        num_substitutions: int,
        has_macros: bool = False,
        rows: Tensor | None = None,
    ) -> None:
        batch = seen.num_episodes
        known = seen.substitutions if rows is None else rows[seen.substitutions]
        if has_macros:
            at_once = (seen.column("candidate", "is_macro") > 0) & (known >= 0)
            known = known + at_once * (num_substitutions // 2)
        kept = torch.nonzero(known >= 0).squeeze(1)
        flat = seen.candidate_episode[kept] * num_substitutions + known[kept]
        # Candidates sorted by episode, then substitution; `_firsts` says where each substitution begins.
        self._order = kept[flat.argsort(stable=True)]
        counts = torch.bincount(flat, minlength=batch * num_substitutions)
        self._firsts = (counts.cumsum(0) - counts).view(batch, num_substitutions)
        counts = counts.view(batch, num_substitutions)
        self._seen = seen
        delta = seen.column("candidate", "cost_delta")
        self._savings = squashed(-delta)
        sums = delta.new_zeros(batch * num_substitutions).index_add(0, flat, -delta[kept])
        savings = squashed(sums.view_as(counts) / counts.clamp(min=1))
        mask = F.pad(counts > 0, (0, 1), value=True)
        self.legal = Legal(mask, counts.clamp(max=MAX_LOCATIONS), savings)

    def rows_of(self, actions: Tensor) -> Tensor:
        """The core's actions [B] for legal ones [B, 2]."""
        seen, last = self._seen, self._firsts.shape[1]
        is_stop = actions[:, 0] == last
        if len(self._order) == 0:
            return seen.counts
        substitution = actions[:, :1].clamp(max=last - 1)
        place = self._firsts.gather(1, substitution).squeeze(1) + actions[:, 1]
        rows = self._order[place.clamp(max=len(self._order) - 1)] - seen.candidate_offsets[:-1]
        return torch.where(is_stop, seen.counts, rows)

    def savings_of(self, rows: Tensor) -> Tensor:
        """What the core's actions [B] save, squashed; 0 for stop."""
        places = self._seen.candidate_offsets[:-1] + rows
        return torch.where(rows == self._seen.counts, 0.0, F.pad(self._savings, (0, 1))[places])


class LatentPolicy(Protocol):
    """Chooses (substitution, rank) in latent states."""

    def act(self, states: LatentState, draw: Draw) -> tuple[Tensor, Decision]:
        """Actions [B, 2] and what the policy says of them."""
        ...


class LatentChooser:
    """Lets a latent policy play real graphs, and records what it saw.

    After each real step the world model makes the same step (`WorldModel.follow`), so that its memory is that
    of the episode.

    Args:
        encoder: frozen; gives the graph embeddings.
        model: of the world; its weights are not changed.
        policy: `TwoStageController`, or one that is uniform.
        has_macros: see `LatentConfig`.
        rows: see `Choices`.

    Attributes:
        seen: features [B, G], what was legal and what the actions saved [B], of every step.
    """

    def __init__(
        self,
        encoder: nn.Module,
        model: WorldModel,
        policy: LatentPolicy,
        has_macros: bool = False,
        rows: Tensor | None = None,
    ) -> None:
        self.has_macros = has_macros
        self.seen: list[tuple[Tensor, Legal, Tensor]] = []
        self._encoder = encoder
        self._model = model
        self._policy = policy
        self._rows = rows
        # `follow` draws a latent and then puts the real one in its place: the numbers drawn do not matter.
        self._generator = torch.Generator().manual_seed(0)
        self._state: WorldState | None = None
        self._last: tuple[Tensor, Tensor] | None = None

    def choose(self, seen: Observation, draw: Draw) -> tuple[Any, Tensor, Tensor, Decision]:
        """What the policy was shown, its actions, the same as actions of the core, and its decision."""
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
        """Of the policy's first choice in an episode."""
        choices = self._choices(seen)
        state = self._model.start(features_of(self._encoder, seen), choices.legal).observed()
        return float(self._policy.act(state, no_noise)[1].entropy)

    def _choices(self, seen: Observation) -> Choices:
        return Choices(seen, self._model.num_substitutions, self.has_macros, self._rows)
