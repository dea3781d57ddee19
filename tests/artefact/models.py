"""Small models whose saved forms have sequences of kernels, weights that oneDNN packs, attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import torchrlopt

OPTIONS = {
    "executor": "eager", "measure": False, "cache": False, "on_error": "raise", "searcher": "greedy"
}  # fmt: skip


class Convolutions(nn.Module):
    """Kernels in a sequence, a concat buffer, a pool, a dict as result."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.depthwise, self.last = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(32, 32, 1)
        self.pool, self.linear = nn.MaxPool2d(2), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = torch.relu(self.norm(self.first(x)))
        z = functional.hardswish(self.depthwise(y))
        y = self.pool(self.last(torch.cat([y, z], 1)))
        return {"scores": self.linear(y.mean((2, 3))), "image": y}


class Attention(nn.Module):
    """Attention with a mask, an embedding, norms; a tuple as result."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.group = nn.Embedding(50, 64), nn.LayerNorm(64), nn.GroupNorm(4, 16)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.norm(self.words(ids))
        q, k, v = self.qkv(x).view(2, 16, 3, 4, 16).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(2, 16, 64))
        x = x + self.down(functional.gelu(self.up(x)))
        return self.group(x), x[:, 0]


class Packed(nn.Module):
    """Weights that oneDNN packs: they are packed on loading. Its activation needs finite operands."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 64)
        self.transposed = nn.ConvTranspose2d(8, 8, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> list[torch.Tensor]:
        return [self.down(torch.relu(self.up(x))), torch.relu(self.transposed(image))]


def made(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A model and the inputs of a call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name == "convolutions":
            return Convolutions().eval(), (torch.randn(1, 3, 16, 16),)
        if name == "attention":
            return Attention().eval(), (torch.randint(0, 50, (2, 16)), torch.randn(2, 1, 16, 16))
        return Packed().eval(), (torch.randn(512, 256), torch.randn(1, 8, 20, 20))


NAMES = ("convolutions", "attention", "packed")


def saved(model: nn.Module, inputs: Any, path: Path, **options: Any) -> Any:
    """The optimised model, after it has been saved."""
    fast = torchrlopt.optimise(model, inputs, **OPTIONS)
    torchrlopt.save(fast, path, **options)
    return fast
