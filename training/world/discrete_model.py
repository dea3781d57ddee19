"""The discrete world model: a categorical latent, and an ensemble that predicts the next one.

The disagreement of the ensemble measures the model's uncertainty, its doubt.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchrlopt.agent.networks.encoder import mlp
from torchrlopt.agent.networks.memory import one_hot
from training.world.sequences import Sequences
from training.world.world_model import WorldModel
from training.world.world_state import WorldState

KEY_WIDTH = 64
# Free nats: below this divergence, the posterior is not trained to be more predictable, because that would
# cost information about the graph.
FREE_NATS = 0.5


class DiscreteModel(WorldModel):
    """Sixteen categoricals of sixteen classes, a GRU, and an ensemble of four priors (after DreamerV3).

    Legality, number of locations and savings of a substitution are dot products of a vector computed from its
    embedding with one computed from the state, so the model generalises to substitutions that it has never
    seen applied.

    Args:
        feature_width: G, width of the graph features.
        rules: [S, D], embeddings of the substitutions.
        hidden: H, width of the GRU.
        groups: number of categorical variables in a latent.
        classes: number of classes of each.
        members: size of the ensemble.
    """

    def __init__(
        self,
        feature_width: int,
        rules: Tensor,
        hidden: int = 256,
        groups: int = 16,
        classes: int = 16,
        members: int = 4,
    ) -> None:
        super().__init__(feature_width, rules, groups * classes, hidden)
        self.groups, self.classes = groups, classes
        self.posterior = mlp(feature_width, hidden, groups * classes)
        self.gru = nn.GRUCell(self.input_width, hidden)
        # Half as wide as the other networks, because all four run in every imagined step.
        self.priors = nn.ModuleList(mlp(hidden, hidden // 2, groups * classes) for _ in range(members))
        self.reconstruction = mlp(hidden + groups * classes, hidden, feature_width)
        self.query = mlp(hidden, hidden, 3 * KEY_WIDTH)
        self.key = mlp(rules.shape[1], hidden, KEY_WIDTH)

    def blank_memory(self, batch: int) -> tuple[Tensor, ...]:
        """See `WorldModel`; empty, because a GRU has no state but its output."""
        return ()

    def encode(self, features: Tensor) -> Tensor:
        """See `WorldModel`; the likeliest class of each categorical variable, one-hot."""
        return one_hot(self._posterior(features).argmax(-1), self.classes)

    def _posterior(self, features: Tensor) -> Tensor:
        """Return class probabilities [..., groups, classes] of real graphs."""
        return self._probabilities(self.posterior(self.standard(features)))

    def _probabilities(self, logits: Tensor) -> Tensor:
        """Softmax mixed with 1 % of the uniform distribution, so that no probability is 0."""
        probabilities: Tensor = logits.unflatten(-1, (self.groups, self.classes)).softmax(-1)
        return probabilities.mul(0.99).add(0.01 / self.classes)

    def _prior(self, hidden: Tensor) -> Tensor:
        """Return the class probabilities of each member, [members, ..., groups, classes]."""
        return torch.stack([self._probabilities(prior(hidden)) for prior in self.priors])

    def rule_scores(self, hidden: Tensor) -> Tensor:
        """See `WorldModel`."""
        keys = self.key(self.rules[:-1]).T / KEY_WIDTH**0.5
        scores: Tensor = self.query(hidden).unflatten(-1, (3, KEY_WIDTH)) @ keys
        return scores

    def advance(
        self, state: WorldState, inputs: Tensor, generator: torch.Generator, temperature: float
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor]:
        """See `WorldModel`. The temperature divides the logits; 0 takes the likeliest classes."""
        hidden = self.gru(inputs, state.hidden)
        each = self._prior(hidden)
        mean = each.mean(0)
        # Variance over the members, computed manually: torch.var over the first dim takes longer than all the
        # rest.
        spread = (each.square().mean(0) - mean.square()).clamp(min=0)
        doubt = spread.sum(-1).mean(-1)
        if temperature > 0:
            weights = mean if temperature == 1 else (mean.log() / temperature).softmax(-1)
            # Inverse transform sampling: one uniform number per categorical variable.
            one_each = (*weights.shape[:-1], 1)
            drawn = torch.rand(one_each, generator=generator, dtype=weights.dtype)
            classes = (weights.cumsum(-1) < drawn).sum(-1).clamp(max=self.classes - 1)
        else:
            classes = mean.argmax(-1)
        return one_hot(classes, self.classes), hidden, (), doubt

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """See `WorldModel`; prior, posterior, features, reward, done, mask, count, saving."""
        posterior = self._posterior(sequences.features)
        # Straight-through estimator: argmax has no gradient, so use that of the probabilities.
        flat = posterior.flatten(-2)
        z = one_hot(posterior.argmax(-1), self.classes) + flat - flat.detach()
        valid = sequences.valid
        before = sequences.legal((slice(None), slice(-1)))
        inputs = self.inputs(z[:, :-1], self.situation(before), sequences.actions, sequences.taken)
        hidden = inputs.new_zeros(len(inputs), self.hidden)
        steps = []
        for t in range(inputs.shape[1]):
            hidden = self.gru(inputs[:, t], hidden)
            steps.append(hidden)
        states = torch.stack(steps, dim=1)[valid]
        target, nearest = posterior[:, 1:][valid].log(), z[:, 1:][valid]
        each = self._prior(states).log()
        both = torch.cat([states, nearest], dim=-1)
        # The latent must describe the graph by itself, so the features are reconstructed twice: from latent
        # and history, and from the latent with the history set to zero.
        alone = torch.cat([torch.zeros_like(states), nearest], dim=-1)
        features = self.standard(sequences.features[:, 1:][valid])
        seen = [F.mse_loss(self.reconstruction(part), features) for part in (both, alone)]
        return {
            "prior": _divergence(target.detach(), each),
            "posterior": 0.1 * _divergence(target, each.detach()).clamp(min=FREE_NATS),
            "features": torch.stack(seen).mean(),
            **self._head_losses(states, before.at(valid), sequences),
        }


def _divergence(target: Tensor, each: Tensor) -> Tensor:
    """Return KL(target || member), summed over the categorical variables, averaged over members and steps."""
    return (target.exp() * (target - each)).sum(-1).sum(-1).mean()
