"""The dissertation's world model (section 3.4): an MDN-RNN."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchrlopt.agent.networks.encoder import mlp
from training.world.sequences import Sequences
from training.world.world_model import WorldModel
from training.world.world_state import WorldState

LOG_SIGMA = (-6.0, 2.0)


class MixtureModel(WorldModel):
    """MDN-RNN (Ha and Schmidhuber 2018): an LSTM and a Gaussian mixture over the change of the latent.

    The latent is the standardised embedding itself. The temperature divides the logits of the mixture and
    multiplies the variance of the noise.

    Args:
        feature_width: G, which equals Z.
        rules: [S, D], embeddings of the substitutions.
        hidden: H, width of the LSTM.
        mixtures: K, number of components.
    """

    def __init__(self, feature_width: int, rules: Tensor, hidden: int = 256, mixtures: int = 8) -> None:
        super().__init__(feature_width, rules, feature_width, hidden)
        self.mixtures = mixtures
        self.lstm = nn.LSTM(self.input_width, hidden, batch_first=True)
        self.mixture_head = nn.Linear(hidden, mixtures * (2 * feature_width + 1))
        self.rule_head = mlp(hidden, hidden, 3 * len(rules))

    def rule_scores(self, hidden: Tensor) -> Tensor:
        """See `WorldModel`."""
        scores: Tensor = self.rule_head(hidden).unflatten(-1, (3, self.num_substitutions))
        return scores

    def encode(self, features: Tensor) -> Tensor:
        """See `WorldModel`; standardised features."""
        return self.standard(features)

    def blank_memory(self, batch: int) -> tuple[Tensor, ...]:
        """See `WorldModel`; hidden and cell state of the LSTM, [1, B, H] each."""
        blank = self.rules.new_zeros(1, batch, self.hidden)
        return blank, blank

    def mixture(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits [..., K], means and log sigmas [..., K, Z] of the change of the latent."""
        out = self.mixture_head(hidden)
        logits = out[..., : self.mixtures]
        means, log_sigmas = (
            out[..., self.mixtures :].unflatten(-1, (2, self.mixtures, self.latent_width)).unbind(-3)
        )
        return logits, means, log_sigmas.clamp(*LOG_SIGMA)

    def advance(
        self, state: WorldState, inputs: Tensor, generator: torch.Generator, temperature: float
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor]:
        """See `WorldModel`. Temperature 0 takes the mean of the likeliest component."""
        out, memory = self.lstm(inputs.unsqueeze(1), state.memory)
        hidden = out.squeeze(1)
        change = sample_mixture(*self.mixture(hidden), generator, temperature)
        return state.z + change, hidden, memory, change.new_zeros(len(change))

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """See `WorldModel`; mixture, reward, done, mask, count, saving."""
        z = self.encode(sequences.features)
        valid = sequences.valid
        before = sequences.legal((slice(None), slice(-1)))
        inputs = self.inputs(z[:, :-1], self.situation(before), sequences.actions, sequences.taken)
        hidden = self.lstm(inputs, self.blank_memory(len(inputs)))[0][valid]
        change = z.diff(dim=1)[valid]
        likelihood = mixture_log_prob(*self.mixture(hidden), change)
        heads = self._head_losses(hidden, before.at(valid), sequences)
        return {"mixture": -likelihood.mean() / self.latent_width, **heads}


def mixture_log_prob(logits: Tensor, means: Tensor, log_sigmas: Tensor, values: Tensor) -> Tensor:
    """Return the log-likelihood [...] of values [..., Z] under mixtures of diagonal Gaussians.

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
    """Sample [B, Z] from mixtures; see `MixtureModel` for the temperature."""
    if temperature > 0:
        probabilities = (logits / temperature).softmax(-1)
        component = torch.multinomial(probabilities, 1, generator=generator)
    else:
        component = logits.argmax(-1, keepdim=True)
    index = component.unsqueeze(-1).expand(-1, 1, means.shape[-1])
    mean, sigma = means.gather(1, index).squeeze(1), log_sigmas.gather(1, index).squeeze(1).exp()
    noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
    return mean + sigma * noise * math.sqrt(temperature)
