"""The training data of world models: real episodes, the first of them random."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchrlopt.agent.networks.actions import MAX_LOCATIONS, Draw, LatentState
from training.networks.candidate_controller import Decision
from training.rollout import Rollout
from training.world.latent_controller import LatentChooser
from training.world.sequences import Sequences


class UniformPolicy(nn.Module):
    """Uniform over all legal (substitution, rank) pairs; stops only if nothing else is legal.

    A collector that stops at random never reaches deep states.
    """

    def act(self, states: LatentState, draw: Draw) -> tuple[Tensor, Decision]:
        """Actions [B, 2]; the decision holds the log-probabilities; values are 0."""
        locations = states.legal.num_locations
        batch, count = locations.shape
        weights = F.pad(locations, (0, 1)).float()
        weights[weights.sum(1) == 0, -1] = 1
        logits = weights.log()
        noise = draw([count + 1] * batch).view(batch, count + 1)
        substitution = (logits + noise).argmax(1)
        sizes = F.pad(locations, (0, 1), value=1)
        chosen = sizes.gather(1, substitution.unsqueeze(1))
        places = torch.where(torch.arange(MAX_LOCATIONS) < chosen, 0.0, -torch.inf)
        rank = (places + draw([MAX_LOCATIONS] * batch).view(batch, MAX_LOCATIONS)).argmax(1)
        zero = torch.zeros(batch)
        log_prob = -weights.sum(1).log()
        return torch.stack([substitution, rank], 1), Decision(log_prob, zero, zero, zero.unsqueeze(1))


def sequences(chooser: LatentChooser, rollout: Rollout) -> Sequences:
    """The episodes that a chooser has just played, in small dtypes: a run keeps all of its episodes."""
    features, legal, taken = zip(*chooser.seen, strict=True)
    return Sequences(
        torch.stack(features, dim=1),
        rollout.actions.transpose(0, 1),
        rollout.rewards.T,
        rollout.terminated.T,
        torch.stack([each.mask for each in legal], dim=1),
        torch.stack([each.num_locations.to(torch.uint8) for each in legal], dim=1),
        torch.stack([each.savings.half() for each in legal], dim=1),
        torch.stack(taken[:-1], dim=1),
        rollout.active.T,
    )


def join(parts: Sequence[Sequences]) -> Sequences:
    """Stack the episodes of several groups, padded to the longest."""
    longest = max(part.rewards.shape[1] for part in parts)
    same = [part.padded(longest - part.rewards.shape[1]) for part in parts]
    names = (field.name for field in dataclasses.fields(Sequences))
    return Sequences(*(torch.cat([getattr(part, name) for part in same]) for name in names))


class Replay:
    """All real episodes of a run."""

    def __init__(self) -> None:
        self._parts: list[Sequences] = []
        self._joined: Sequences | None = None

    def add(self, parts: Sequence[Sequences]) -> None:
        """Add episodes, one entry per group."""
        self._parts += parts
        self._joined = None

    def joined(self) -> Sequences:
        """See `join`."""
        if self._joined is None:
            self._joined = join(self._parts)
        return self._joined

    def state_dict(self) -> dict[str, Any]:
        """Tensors by name, per group."""
        return {"parts": [dataclasses.asdict(part) for part in self._parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._parts = [Sequences(**part) for part in state["parts"]]
        self._joined = None
