"""The latent controller in real episodes, and real episodes as sequences for a world model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchrlopt.agent.controller import Decision, Draw, no_noise
from torchrlopt.agent.observation import Observation
from torchrlopt.agent.rollout import Rollout
from torchrlopt.agent.two_stage import MAX_LOCATIONS, LatentState, TwoStageController
from torchrlopt.agent.world_model import Sequences, WorldModel, WorldState


def legal(seen: Observation, num_substitutions: int) -> tuple[Tensor, Tensor]:
    """What is legal in B episodes without macro-actions: mask [B, S + 1], stop last, and locations [B, S]."""
    flat = seen.candidate_episode * num_substitutions + seen.substitutions
    counts = torch.bincount(flat, minlength=seen.num_episodes * num_substitutions)
    counts = counts.view(seen.num_episodes, num_substitutions).clamp(max=MAX_LOCATIONS)
    stop = torch.ones(seen.num_episodes, 1, dtype=torch.bool)
    return torch.cat([counts > 0, stop], dim=1), counts


def rows_of_actions(seen: Observation, actions: Tensor, num_substitutions: int) -> Tensor:
    """The core's actions [B] for (substitution, rank) [B, 2].

    Candidates come in the order of substitutions and locations, so the rank counts from the first one.
    """
    counts = torch.bincount(
        seen.candidate_episode * num_substitutions + seen.substitutions,
        minlength=seen.num_episodes * num_substitutions,
    ).view(seen.num_episodes, num_substitutions)
    firsts = counts.cumsum(1) - counts
    is_stop = actions[:, 0] == num_substitutions
    substitution = actions[:, :1].clamp(max=num_substitutions - 1)
    rows = firsts.gather(1, substitution).squeeze(1) + actions[:, 1]
    return torch.where(is_stop, seen.counts, rows)


class UniformPolicy(nn.Module):
    """Every legal (substitution, rank) alike; stop only where nothing else is legal.

    A collector that stops now and then never sees what lies deep.
    """

    def act(self, states: LatentState, draw: Draw) -> tuple[Tensor, Decision]:
        """Actions [B, 2]; the decision holds the log-probabilities, values are 0."""
        batch, count = states.num_locations.shape
        weights = torch.cat([states.num_locations, torch.zeros(batch, 1, dtype=torch.int64)], 1).float()
        weights[weights.sum(1) == 0, -1] = 1
        logits = weights.log()
        noise = draw([count + 1] * batch).view(batch, count + 1)
        substitution = (logits + noise).argmax(1)
        sizes = torch.cat([states.num_locations, torch.ones(batch, 1, dtype=torch.int64)], 1)
        chosen = sizes.gather(1, substitution.unsqueeze(1))
        places = torch.where(torch.arange(MAX_LOCATIONS) < chosen, 0.0, -torch.inf)
        rank = (places + draw([MAX_LOCATIONS] * batch).view(batch, MAX_LOCATIONS)).argmax(1)
        zero = torch.zeros(batch)
        log_prob = -weights.sum(1).log()
        return torch.stack([substitution, rank], 1), Decision(log_prob, zero, zero, zero.unsqueeze(1))


class LatentChooser:
    """Plays a two-stage policy on real graphs, the world model's memory following, and records what it saw.

    Args:
        encoder: frozen; gives the graph embeddings.
        model: of the world; its weights are not changed.
        policy: `TwoStageController` or `UniformPolicy`.
    """

    def __init__(
        self, encoder: nn.Module, model: WorldModel, policy: TwoStageController | UniformPolicy
    ) -> None:
        self.has_macros = False
        self._encoder = encoder
        self._model = model
        self._policy = policy
        self._generator = torch.Generator().manual_seed(0)  # what it draws is not used
        self._state: WorldState | None = None
        self._actions: Tensor | None = None
        self._seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def choose(self, seen: Observation, draw: Draw) -> tuple[Any, Tensor, Tensor, Decision]:
        """See `training.episodes.CandidateChooser`."""
        count = self._model.num_substitutions
        features = self._encoder(seen)[1]
        mask, locations = legal(seen, count)
        self._seen.append((features, mask, locations))
        if self._state is None or self._actions is None:
            self._state = self._model.start(features, mask, locations)
        else:
            self._state = self._model.follow(
                self._state, self._actions, features, mask, locations, self._generator
            )
        states = self._state.observed()
        self._actions, decision = self._policy.act(states, draw)
        return states, self._actions, rows_of_actions(seen, self._actions, count), decision

    def entropy(self, seen: Observation) -> float:
        """Of the policy at the beginning of one episode."""
        features, (mask, locations) = self._encoder(seen)[1], legal(seen, self._model.num_substitutions)
        state = self._model.start(features, mask, locations).observed()
        return float(self._policy.act(state, no_noise)[1].entropy)

    def sequences(self, rollout: Rollout) -> Sequences:
        """The episodes that were just played, as data for a world model."""
        features, masks, locations = (torch.stack(each, dim=1) for each in zip(*self._seen, strict=True))
        return Sequences(
            features,
            rollout.actions.transpose(0, 1),
            rollout.rewards.T,
            rollout.terminated.T,
            masks,
            locations,
            rollout.active.T,
        )


def join(parts: Sequence[Sequences]) -> Sequences:
    """Episodes of several groups side by side, padded to the longest."""
    longest = max(part.rewards.shape[1] for part in parts)
    same = [part.padded(longest - part.rewards.shape[1]) for part in parts]
    names = ("features", "actions", "rewards", "terminated", "mask", "num_locations", "valid")
    return Sequences(*(torch.cat([getattr(part, name) for part in same]) for name in names))
