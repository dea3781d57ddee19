"""The two-stage policy with its value estimate, as PPO trains it in imagination."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from torchrlopt.agent.networks.actions import Draw, LatentState, Legal
from torchrlopt.agent.networks.policy import TwoStagePolicy
from training.networks.candidate_controller import Decision
from training.networks.value_head import ValueHead


class TwoStageController(TwoStagePolicy):
    """Policy and value over latent states; see `Policy`.

    Args:
        feature_width: F, width of the state features.
        rules: [S, D], embeddings of the substitutions.
        hidden: width of the MLPs.
        kappa: initial slope of the greedy part, which is learned.
    """

    def __init__(self, feature_width: int, rules: Tensor, hidden: int = 128, kappa: float = 10.0) -> None:
        super().__init__(feature_width, rules, hidden, kappa)
        self.value = ValueHead(hidden, hidden)

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
        actions, trunk, logits, places = self.choose(states, draw)
        return actions, self._decision(trunk, logits, places, actions)

    def evaluate(self, states: LatentState, actions: Tensor) -> Decision:
        """Evaluate actions [B, 2]."""
        trunk, logits = self.substitutions(states)
        return self._decision(trunk, logits, self.locations(states, trunk, actions[:, 0]), actions)

    def _decision(self, trunk: Tensor, logits: Tensor, places: Tensor, actions: Tensor) -> Decision:
        log_prob = logits.gather(1, actions[:, :1]) + places.gather(1, actions[:, 1:])
        value_logits = self.value(trunk)
        # The second stage's distribution is known for the chosen substitution only. Its entropy is an
        # unbiased estimate of the mean over all substitutions.
        entropy = masked_entropy(logits) + masked_entropy(places)
        return Decision(log_prob.squeeze(1), entropy, self.value.mean(value_logits), value_logits)


def masked_entropy(log_probs: Tensor) -> Tensor:
    """Return the entropy of distributions in the last dim; illegal entries are -inf."""
    # 0 * -inf is NaN, so replace -inf by the smallest finite value, whose product with 0 is 0.
    finite = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)
    return -(finite.exp() * finite).sum(-1)
