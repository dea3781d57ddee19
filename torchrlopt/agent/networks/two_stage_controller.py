"""The two-stage head: first a substitution or stop, then a location; both masked (dissertation, 3.2)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchrlopt.agent.networks.candidate_controller import Decision, Draw
from torchrlopt.agent.networks.encoder import mlp
from torchrlopt.agent.networks.value_head import ValueHead

MAX_LOCATIONS = 200


@dataclasses.dataclass(frozen=True)
class Legal:
    """Legal actions in real or imagined states, with any leading dimensions.

    Attributes:
        mask: [..., S + 1], bool: legal substitutions, stop last.
        num_locations: [..., S], number of legal locations of each, at most `MAX_LOCATIONS`.
        savings: [..., S], mean saving of each over its locations, `squashed`. For illegal substitutions it is
            0 in real states and the model's prediction in imagined states.
    """

    mask: Tensor
    num_locations: Tensor
    savings: Tensor

    def at(self, index: Any) -> Legal:
        """Select some of the states."""
        return Legal(self.mask[index], self.num_locations[index], self.savings[index])

    def saving_of(self, actions: Tensor) -> Tensor:
        """Return the savings [...] of the substitutions of actions [..., 2]; 0 for stop."""
        with_stop = F.pad(self.savings, (0, 1))
        return with_stop.gather(-1, actions[..., :1]).squeeze(-1)


def squashed(saving: Tensor) -> Tensor:
    """Signed square root: most steps save a thousandth of the initial cost, some a third."""
    return saving.sign() * saving.abs().sqrt()


@dataclasses.dataclass(frozen=True)
class LatentState:
    """The observation of a latent controller for B episodes, real or imagined.

    Attributes:
        features: [B, F], latent z and hidden h of the world model, concatenated.
        legal: legal actions of the [B] states.
    """

    features: Tensor
    legal: Legal


class TwoStageController(nn.Module):
    """Policy and value over latent states.

    An action is (substitution, rank): the rank indexes the legal locations of the substitution, so only their
    number must be known. The score of a substitution is the dot product of its embedding with a state vector,
    plus kappa times its saving; with a large kappa, the untrained policy is greedy.

    Args:
        feature_width: F, width of the state features.
        rules: [S, D], embeddings of the substitutions.
        hidden: width of the MLPs.
        kappa: initial slope of the greedy part, which is learned.
    """

    rules: Tensor

    def __init__(self, feature_width: int, rules: Tensor, hidden: int = 128, kappa: float = 10.0) -> None:
        super().__init__()
        rule_width = rules.shape[1]
        self.register_buffer("rules", rules.detach().clone())
        self.stop = nn.Parameter(torch.zeros(rule_width))
        self.trunk = nn.Sequential(nn.Linear(feature_width, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.key = nn.Linear(rule_width, hidden)
        # `_second` computes only as many outputs as there are locations.
        self.location = mlp(hidden + rule_width, hidden, MAX_LOCATIONS)
        self.value = ValueHead(hidden, hidden)
        self.log_kappa = nn.Parameter(torch.tensor(math.log(kappa), dtype=torch.float32))

    def collate(self, states: Sequence[LatentState]) -> LatentState:
        """Collate several states into one batch."""
        names = (field.name for field in dataclasses.fields(Legal))
        legal = (torch.cat([getattr(state.legal, name) for state in states]) for name in names)
        return LatentState(torch.cat([state.features for state in states]), Legal(*legal))

    def pick(self, states: LatentState, rows: Sequence[int]) -> list[LatentState]:
        """Return some states, separately."""
        each = [slice(row, row + 1) for row in rows]
        return [LatentState(states.features[row], states.legal.at(row)) for row in each]

    def size(self, state: LatentState) -> int:
        """See `Policy`; all states have the same size."""
        return 1

    def act(self, states: LatentState, draw: Draw) -> tuple[Tensor, Decision]:
        """Draw actions [B, 2]; the rank of stop is 0."""
        trunk, logits = self._first(states)
        batch, choices = logits.shape
        substitution = (logits + draw([choices] * batch).view_as(logits)).argmax(-1)
        places = self._second(states, trunk, substitution)
        rank = (places + draw([places.shape[1]] * batch).view_as(places)).argmax(-1)
        actions = torch.stack([substitution, rank], dim=-1)
        return actions, self._decision(trunk, logits, places, actions)

    def evaluate(self, states: LatentState, actions: Tensor) -> Decision:
        """Evaluate actions [B, 2]."""
        trunk, logits = self._first(states)
        return self._decision(trunk, logits, self._second(states, trunk, actions[:, 0]), actions)

    def _first(self, states: LatentState) -> tuple[Tensor, Tensor]:
        """Return the trunk [B, hidden] and log-probabilities of substitutions and stop [B, S + 1]."""
        trunk = torch.relu(self.trunk(states.features))
        keys = self.key(torch.cat([self.rules, self.stop.unsqueeze(0)]))
        greedy = F.pad(self.log_kappa.exp() * states.legal.savings, (0, 1))
        logits = trunk @ keys.T / keys.shape[1] ** 0.5 + greedy
        return trunk, masked_log_softmax(logits, states.legal.mask)

    def _second(self, states: LatentState, trunk: Tensor, substitution: Tensor) -> Tensor:
        """Return log-probabilities of the ranks of the chosen substitutions, [B, L], with L as needed."""
        rules = torch.cat([self.rules, self.stop.unsqueeze(0)])[substitution]
        # Stop has one location, so that its second choice has probability 1.
        counts = F.pad(states.legal.num_locations, (0, 1), value=1).gather(1, substitution.unsqueeze(1))
        counts = counts.clamp(1, MAX_LOCATIONS)
        most = int(counts.max())
        last = self.location[-1]
        assert isinstance(last, nn.Linear)
        hidden = self.location[:-1](torch.cat([trunk, rules], dim=-1))
        logits = F.linear(hidden, last.weight[:most], last.bias[:most])
        return masked_log_softmax(logits, torch.arange(most) < counts)

    def _decision(self, trunk: Tensor, logits: Tensor, places: Tensor, actions: Tensor) -> Decision:
        log_prob = logits.gather(1, actions[:, :1]) + places.gather(1, actions[:, 1:])
        value_logits = self.value(trunk)
        # The second stage's distribution is known for the chosen substitution only. Its entropy is an
        # unbiased estimate of the mean over all substitutions.
        entropy = masked_entropy(logits) + masked_entropy(places)
        return Decision(log_prob.squeeze(1), entropy, self.value.mean(value_logits), value_logits)


def masked_log_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Log-softmax over the legal entries of the last dim; -inf elsewhere. At least one must be legal."""
    return logits.masked_fill(~mask, -torch.inf).log_softmax(-1)


def masked_entropy(log_probs: Tensor) -> Tensor:
    """Return the entropy of distributions in the last dim; illegal entries are -inf."""
    # 0 * -inf is NaN, so replace -inf by the smallest finite value, whose product with 0 is 0.
    finite = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)
    return -(finite.exp() * finite).sum(-1)
