"""The two-stage policy: first a substitution or stop, then a location; both masked (dissertation, 3.2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchrlopt.agent.networks.actions import MAX_LOCATIONS, Draw, LatentState
from torchrlopt.agent.networks.encoder import mlp


class TwoStagePolicy(nn.Module):
    """A policy over latent states.

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
        # `locations` computes only as many outputs as there are locations.
        self.location = mlp(hidden + rule_width, hidden, MAX_LOCATIONS)
        self.log_kappa = nn.Parameter(torch.tensor(math.log(kappa), dtype=torch.float32))

    def substitutions(self, states: LatentState) -> tuple[Tensor, Tensor]:
        """Return the trunk [B, hidden] and log-probabilities of substitutions and stop [B, S + 1]."""
        trunk = torch.relu(self.trunk(states.features))
        keys = self.key(torch.cat([self.rules, self.stop.unsqueeze(0)]))
        greedy = F.pad(self.log_kappa.exp() * states.legal.savings, (0, 1))
        logits = trunk @ keys.T / keys.shape[1] ** 0.5 + greedy
        return trunk, masked_log_softmax(logits, states.legal.mask)

    def locations(self, states: LatentState, trunk: Tensor, substitution: Tensor) -> Tensor:
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

    def choose(self, states: LatentState, draw: Draw) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Draw actions [B, 2]; the rank of stop is 0.

        Returns:
            The actions, then what they were drawn from: the trunk and the log-probabilities of both stages.
        """
        trunk, logits = self.substitutions(states)
        batch, choices = logits.shape
        substitution = (logits + draw([choices] * batch).view_as(logits)).argmax(-1)
        places = self.locations(states, trunk, substitution)
        rank = (places + draw([places.shape[1]] * batch).view_as(places)).argmax(-1)
        return torch.stack([substitution, rank], dim=-1), trunk, logits, places


def masked_log_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Log-softmax over the legal entries of the last dim; -inf elsewhere. At least one must be legal."""
    return logits.masked_fill(~mask, -torch.inf).log_softmax(-1)
