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

#: Rewards depend on these two, but an embedding need not preserve them exactly. So they are passed to the
#: world model unchanged, as the last two features.
KEPT_GLOBALS = ("cost", "best_cost")
#: World models by row, constructed from the feature width and the substitution embeddings.
MODELS: dict[str, Callable[[int, Tensor], WorldModel]] = {"wm": MixtureModel, "wm_plus": DiscreteModel}


@dataclasses.dataclass(frozen=True)
class LatentConfig:
    """Sizes of a `LatentController`.

    Attributes:
        row: a name in `MODELS`.
        encoder: a name in `torchrlopt.agent.networks.encoder.ENCODERS`.
        width: width of graph embeddings.
        rule_width: D, width of substitution embeddings.
        has_macros: whether one action may apply a substitution at a whole class of symmetric locations: the
            networks then see each substitution as two, at one location and at all of a class.
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

    def chooser(self, policy: LatentPolicy | None = None, rows: Tensor | None = None) -> LatentChooser:
        """Return a chooser with which this or another policy acts on real graphs.

        Args:
            policy: the policy; None for this controller's own.
            rows: see `Choices`.
        """
        chosen = self.policy if policy is None else policy
        return LatentChooser(self.encoder, self.model, chosen, self.config.has_macros, rows)

    def rows_of(self, names: Sequence[str]) -> Tensor:
        """Return the index of each substitution among the known ones, -1 if unknown: [len(names)]."""
        known = {name: row for row, name in enumerate(self.names)}
        return torch.tensor([known.get(name, -1) for name in names], dtype=torch.int64)


def kinds_of(rules: Tensor, has_macros: bool) -> Tensor:
    """Return embeddings of all kinds of steps except stop, from those of the substitutions, [S, D].

    With macros, [2 S, D + 1]: each substitution at one location, then each at a class of locations. The last
    column distinguishes them.
    """
    if not has_macros:
        return rules
    one = rules.new_full((len(rules), 1), -1.0)
    return torch.cat([torch.cat([rules, one], 1), torch.cat([rules, -one], 1)])


def features_of(encoder: nn.Module, seen: Observation) -> Tensor:
    """Return a world model's features of graphs, [B, G]: their embeddings and `KEPT_GLOBALS`."""
    kept = torch.stack([seen.column("global", name) for name in KEPT_GLOBALS], dim=1)
    return torch.cat([encoder(seen)[1], kept], dim=1)


class Choices:
    """Translates between the core's candidates and a policy's actions, for B episodes.

    The core numbers the candidates of an episode. The policy returns (substitution, rank): the rank indexes
    the locations of the substitution in the order of the candidates. With macros, a class of locations counts
    as one location of a separate substitution, see `kinds_of`.

    Args:
        seen: the episodes.
        num_substitutions: S, number of substitutions known to the policy; 2 S with macros.
        has_macros: whether the environment offers them.
        rows: [S'], index of each substitution of the environment's library among them, -1 if unknown; None if
            both are identical.

    Attributes:
        legal: legal actions of the [B] states.
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
        # Candidates sorted by episode, then substitution; `_firsts` is the first row of each substitution.
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
        """Convert legal actions [B, 2] to the core's actions [B]."""
        seen, last = self._seen, self._firsts.shape[1]
        is_stop = actions[:, 0] == last
        if len(self._order) == 0:
            return seen.counts
        substitution = actions[:, :1].clamp(max=last - 1)
        place = self._firsts.gather(1, substitution).squeeze(1) + actions[:, 1]
        rows = self._order[place.clamp(max=len(self._order) - 1)] - seen.candidate_offsets[:-1]
        return torch.where(is_stop, seen.counts, rows)

    def savings_of(self, rows: Tensor) -> Tensor:
        """Return the savings of the core's actions [B], squashed; 0 for stop."""
        places = self._seen.candidate_offsets[:-1] + rows
        return torch.where(rows == self._seen.counts, 0.0, F.pad(self._savings, (0, 1))[places])


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
        has_macros: see `LatentConfig`.
        rows: see `Choices`.

    Attributes:
        seen: features [B, G], legal actions and savings of the actions [B], for every step.
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
        return Choices(seen, self._model.num_substitutions, self.has_macros, self._rows)
