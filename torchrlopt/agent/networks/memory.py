"""What the agent knows of an episode: a discrete latent of the graph, and a recurrent network.

Both are parts of the world model that the agent was trained in (`training/world/discrete_model.py`). Its
predictions of what a step brings are needed in training only, because the core performs real steps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchrlopt.agent.networks.actions import Legal
from torchrlopt.agent.networks.encoder import mlp

# Standardised features are clamped to this many standard deviations, so that an unusual graph does not drive
# the networks far out of their training distribution.
FURTHEST = 5.0


class StepInputs(nn.Module):
    """Turns features, actions and what is legal into inputs of a recurrent network.

    Args:
        feature_width: G, width of the features of a graph: its embedding, then its two costs.
        rules: [S, D], embeddings of the substitutions, not trained here.
        latent_width: Z, width of the latent.
        hidden: H, width of the recurrent network.
    """

    rules: Tensor
    feature_mean: Tensor
    feature_std: Tensor

    def __init__(self, feature_width: int, rules: Tensor, latent_width: int, hidden: int) -> None:
        super().__init__()
        self.latent_width = latent_width
        self.hidden = hidden
        # The embeddings of similar substitutions differ little. Standardising each column over all
        # substitutions makes the differences large enough to be useful. The last row, zeros, stands for stop.
        standard = (rules - rules.mean(0)) / rules.std(0).clamp(min=1e-3)
        self.register_buffer("rules", torch.cat([standard.detach(), torch.zeros(1, rules.shape[1])]))
        self.register_buffer("feature_mean", torch.zeros(feature_width))
        self.register_buffer("feature_std", torch.ones(feature_width))

    @property
    def num_substitutions(self) -> int:
        """S, number of kinds of steps, see `torchrlopt.agent.networks.actions.kinds_of`."""
        return len(self.rules) - 1

    @property
    def state_width(self) -> int:
        """F, width of `LatentState.features`."""
        return self.latent_width + self.hidden + 2 * self.rules.shape[1]

    @property
    def input_width(self) -> int:
        """Width of `inputs`."""
        return self.latent_width + 3 * self.rules.shape[1] + 3

    def standard(self, features: Tensor) -> Tensor:
        """Return features [..., G] in standard deviations from their mean, clamped at FURTHEST."""
        return ((features - self.feature_mean) / self.feature_std).clamp(-FURTHEST, FURTHEST)

    def action_input(self, actions: Tensor) -> Tensor:
        """Encode actions [..., 2] as [..., D + 2]: embedding of the substitution, rank, is it stop."""
        substitution, rank = actions[..., 0], actions[..., 1]
        place = torch.log2(1 + rank.to(self.rules.dtype)) / 8
        stop = (substitution == self.num_substitutions).to(self.rules.dtype)
        return torch.cat([self.rules[substitution], place.unsqueeze(-1), stop.unsqueeze(-1)], dim=-1)

    def situation(self, legal: Legal) -> Tensor:
        """Encode the legal actions as a vector of fixed size, [..., 2 D].

        It consists of two weighted sums of the embeddings of legal substitutions: one weighted by log2(1 +
        number of locations) / 8, one by their savings.
        """
        mask = legal.mask[..., :-1]
        places = torch.log2(1 + legal.num_locations.to(self.rules.dtype)) * mask / 8
        return torch.cat([places @ self.rules[:-1], (legal.savings * mask) @ self.rules[:-1]], dim=-1)

    def inputs(self, z: Tensor, situation: Tensor, actions: Tensor, taken: Tensor) -> Tensor:
        """Return the recurrent network's input, [..., I]; `taken` [...] are the savings of the actions."""
        return torch.cat([z, situation, self.action_input(actions), taken.unsqueeze(-1)], dim=-1)


class Memory(StepInputs):
    """Encodes graphs as categorical variables, and remembers the steps of an episode in a GRU.

    Args:
        feature_width: G, width of the graph features.
        rules: [S, D], embeddings of the substitutions.
        hidden: H, width of the GRU.
        groups: number of categorical variables in a latent.
        classes: number of classes of each.
    """

    def __init__(
        self, feature_width: int, rules: Tensor, hidden: int = 256, groups: int = 16, classes: int = 16
    ) -> None:
        super().__init__(feature_width, rules, groups * classes, hidden)
        self.groups, self.classes = groups, classes
        self.posterior = mlp(feature_width, hidden, groups * classes)
        self.gru = nn.GRUCell(self.input_width, hidden)

    def encode(self, features: Tensor) -> Tensor:
        """Encode features of real graphs [..., G] as latents [..., Z].

        Returns:
            The likeliest class of each categorical variable, one-hot.
        """
        logits = self.posterior(self.standard(features)).unflatten(-1, (self.groups, self.classes))
        return one_hot(logits.argmax(-1), self.classes)


def one_hot(classes: Tensor, num_classes: int) -> Tensor:
    """Return float32 [..., groups * num_classes] from classes [..., groups]."""
    hot: Tensor = F.one_hot(classes, num_classes)
    return hot.flatten(-2).to(torch.float32)
