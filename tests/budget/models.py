"""Small models whose calls differ in how much their rounding matters."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Attention, norms, a residual stream and products: what transformers are made of."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Take and return (batch, tokens, width)."""
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norms[1](x))


class Images(nn.Module):
    """Convolutions with a residual sum, a pool, and a classifier."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.last = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Take (batch, 3, height, width), return (batch, 10)."""
        x = self.first(x).relu()
        x = (self.second(x) + x).relu()
        return self.last(nn.functional.max_pool2d(x, 2).mean((2, 3)))


class Uneven(nn.Module):
    """The first branch hardly counts in the sum, the second is nearly all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(256, 256), nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        """Take and return (rows, 256)."""
        return self.small(x) * 1e-3 + self.large(x)


def block(width: int = 64) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a transformer of two blocks, and its input."""
    torch.manual_seed(0)
    return nn.Sequential(Block(width), Block(width)).eval(), (torch.randn(2, 32, width),)


def images(width: int = 64) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the network of convolutions, and its input."""
    torch.manual_seed(0)
    return Images(width).eval(), (torch.randn(2, 3, 24, 24),)


def uneven() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the two branches, and their input."""
    torch.manual_seed(0)
    return Uneven().eval(), (torch.randn(64, 256),)
