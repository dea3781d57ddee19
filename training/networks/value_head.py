"""Values as classification: a histogram over [0, 0.75], Gaussian targets (HL-Gauss, Farebrother et al. 2024).

Improvements are fractions of the initial cost, so the range is known; cross-entropy on a histogram is far
less sensitive to the scale of a graph than squared error.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchrlopt.agent.networks.encoder import mlp

LOWEST, HIGHEST = 0.0, 0.75
NUM_BINS = 51


class ValueHead(nn.Module):
    """Predicts logits over bins.

    Args:
        width: width of the input.
        hidden: width of the MLP.
    """

    edges: Tensor

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.net = mlp(width, hidden, NUM_BINS)
        self.register_buffer("edges", torch.linspace(LOWEST, HIGHEST, NUM_BINS + 1), persistent=False)

    def forward(self, state: Tensor) -> Tensor:
        """Return logits [B, K] from states [B, width]."""
        logits: Tensor = self.net(state)
        return logits

    def mean(self, logits: Tensor) -> Tensor:
        """Return expected values [B] of logits [B, K]."""
        centres = (self.edges[1:] + self.edges[:-1]) / 2
        return (logits.softmax(-1) * centres).sum(-1)

    def targets(self, values: Tensor) -> Tensor:
        """Return bin probabilities [B, K] for values [B], which are clamped to the range.

        The target is a Gaussian around the value with a sigma of three quarters of a bin, truncated to the
        range.
        """
        sigma = 0.75 * (HIGHEST - LOWEST) / NUM_BINS
        clipped = values.clamp(LOWEST, HIGHEST).unsqueeze(-1)
        # In double precision: far from the value, the CDF at both ends of a bin is equal in float32.
        below: Tensor = torch.special.ndtr((self.edges - clipped).double() / sigma)
        mass = below.diff(dim=-1)
        return (mass / mass.sum(-1, keepdim=True)).to(values.dtype)

    def loss(self, logits: Tensor, values: Tensor) -> Tensor:
        """Return the cross-entropy of each value, [B]."""
        return -(self.targets(values) * F.log_softmax(logits, dim=-1)).sum(-1)
