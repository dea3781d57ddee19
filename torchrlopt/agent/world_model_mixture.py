"""The dissertation's world model (section 3.4): an MDN-RNN."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchrlopt.agent.encoder import mlp
from torchrlopt.agent.world_model import RARE, Prediction, Sequences, WorldModel, WorldState

LOG_SIGMA = (-6.0, 2.0)


class MixtureModel(WorldModel):
    """MDN-RNN (Ha and Schmidhuber 2018): an LSTM and a mixture of Gaussians over the change of the latent.

    The latent is the standardised embedding itself. The temperature divides the logits of the mixture and
    multiplies the variance of the noise.

    Args:
        feature_width: G, which is Z too.
        rules: [S, D].
        hidden: H.
        mixtures: K.
    """

    def __init__(self, feature_width: int, rules: Tensor, hidden: int = 256, mixtures: int = 8) -> None:
        super().__init__(feature_width, rules, feature_width, hidden)
        self.mixtures = mixtures
        self.lstm = nn.LSTM(feature_width + 2 * rules.shape[1] + 2, hidden, batch_first=True)
        self.mixture_head = nn.Linear(hidden, mixtures * (2 * feature_width + 1))
        self.mask_head = mlp(hidden, hidden, len(rules))
        self.count_head = mlp(hidden, hidden, len(rules))
        # A few dozen of hundreds are legal: "none" is where the head begins.
        last = self.mask_head[-1]
        assert isinstance(last, nn.Linear)
        nn.init.constant_(last.bias, RARE)

    def encode(self, features: Tensor) -> Tensor:
        """See `WorldModel`: standardised features."""
        return (features - self.feature_mean) / self.feature_std

    def blank_memory(self, batch: int) -> tuple[Tensor, ...]:
        """Hidden and cell state of the LSTM, [1, B, H] each."""
        blank = self.rules.new_zeros(1, batch, self.hidden)
        return blank, blank

    def mixture(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [..., K], means and log sigmas [..., K, Z] of the change of the latent."""
        out = self.mixture_head(hidden)
        logits = out[..., : self.mixtures]
        means, log_sigmas = (
            out[..., self.mixtures :].unflatten(-1, (2, self.mixtures, self.latent_width)).unbind(-3)
        )
        return logits, means, log_sigmas.clamp(*LOG_SIGMA)

    def step(
        self, state: WorldState, actions: Tensor, generator: torch.Generator, temperature: float = 1.0
    ) -> tuple[WorldState, Prediction]:
        """See `WorldModel`. Temperature 0 takes the mean of the likeliest component."""
        given = self.given(state.z, state.situation, actions)
        out, memory = self.lstm(given.unsqueeze(1), state.memory)
        hidden = out.squeeze(1)
        change = sample_mixture(*self.mixture(hidden), generator, temperature)
        z = state.z + change
        doubt = torch.zeros(len(z))
        legal, log_counts = self.carried(state.num_locations, actions)
        legal, log_counts = legal + self.mask_head(hidden), log_counts + self.count_head(hidden)
        return self._next(z, hidden, memory, legal, log_counts, doubt)

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """See `WorldModel`: mixture, reward, done, mask, count."""
        z = self.encode(sequences.features)
        valid, actions = sequences.valid, sequences.actions
        before = sequences.num_locations[:, :-1]
        situation = self.situation(sequences.mask[:, :-1], before)
        given = self.given(z[:, :-1], situation, actions)
        hidden = self.lstm(given, self.blank_memory(len(given)))[0][valid]
        change = z.diff(dim=1)[valid]
        likelihood = mixture_log_prob(*self.mixture(hidden), change)
        legal, log_counts = self.carried(before[valid], actions[valid])
        legal, log_counts = legal + self.mask_head(hidden), log_counts + self.count_head(hidden)
        heads = self._head_losses(hidden, legal, log_counts, sequences)
        return {"mixture": -likelihood.mean() / self.latent_width, **heads}


def mixture_log_prob(logits: Tensor, means: Tensor, log_sigmas: Tensor, values: Tensor) -> Tensor:
    """Log-likelihood of values [..., Z] under mixtures of diagonal Gaussians, [...].

    Args:
        logits: [..., K].
        means: [..., K, Z].
        log_sigmas: [..., K, Z].
        values: [..., Z].
    """
    scaled = (values.unsqueeze(-2) - means) * torch.exp(-log_sigmas)
    each = (-0.5 * scaled.square() - log_sigmas - 0.5 * math.log(2 * math.pi)).sum(-1)
    return torch.logsumexp(logits.log_softmax(-1) + each, dim=-1)


def sample_mixture(
    logits: Tensor, means: Tensor, log_sigmas: Tensor, generator: torch.Generator, temperature: float
) -> Tensor:
    """Draw [B, Z] from mixtures; see `MixtureModel` for the temperature."""
    if temperature > 0:
        probabilities = (logits / temperature).softmax(-1)
        component = torch.multinomial(probabilities, 1, generator=generator)
    else:
        component = logits.argmax(-1, keepdim=True)
    index = component.unsqueeze(-1).expand(-1, 1, means.shape[-1])
    mean, sigma = means.gather(1, index).squeeze(1), log_sigmas.exp().gather(1, index).squeeze(1)
    noise = torch.randn(mean.shape, generator=generator)
    return mean + sigma * noise * math.sqrt(temperature)
