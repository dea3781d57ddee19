"""Naive first versions of models, with loops: heads, experts and ensemble members one by one.

They are correct and readable, and slow for reasons that a compiler could remove: many small products that
share an input, and products of three matrices in the expensive order.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _mlp(width: int, hidden: int, out_width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, out_width))


class PreNormLayer(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)), on tokens [B, T, width]."""

    def __init__(self, width: int, mixer: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.mixer_norm = nn.LayerNorm(width)
        self.mixer = mixer
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.mixer_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class LinearAttention(nn.Module):
    """Attention with the feature map elu + 1 instead of softmax, in the order of its formula: (Q K^T) V.

    Katharopoulos et al. (2020), with a constant in place of their row normaliser. Q (K^T V) is the same, in
    linear time.
    """

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q = F.elu(self._heads(self.query(x))) + 1
        k = F.elu(self._heads(self.key(x))) + 1
        v = self._heads(self.value(x))
        scores = q @ k.transpose(-2, -1)
        attended = (scores @ v) / (x.shape[1] * q.shape[-1])
        return self.out(attended.transpose(1, 2).reshape(x.shape))


class Head(nn.Module):
    """One attention head with its own three linear layers."""

    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, head_width, bias=False)
        self.key = nn.Linear(width, head_width, bias=False)
        self.value = nn.Linear(width, head_width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1)
        return weights @ v


class HeadsInLoop(nn.Module):
    """Multi-head attention as tutorials write it: a list of heads, concatenated and projected."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head(width, width // num_heads) for _ in range(num_heads))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([head(x) for head in self.heads], dim=-1))


class ExpertsInLoop(nn.Module):
    """A mixture of experts with dense (soft) gating: each expert sees each token, in a Python loop."""

    def __init__(self, width: int, hidden: int, num_experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, num_experts)
        self.experts = nn.ModuleList(_mlp(width, hidden, width) for _ in range(num_experts))

    def forward(self, x: Tensor) -> Tensor:
        gates = F.softmax(self.gate(x), dim=-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            out = out + gates[..., index : index + 1] * expert(x)
        return out


class MixtureBlocks(nn.Module):
    """Residual blocks of LayerNorm and dense mixture, on tokens [B, T, width]."""

    def __init__(self, width: int, hidden: int, num_experts: int, num_blocks: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(num_blocks))
        self.mixtures = nn.ModuleList(ExpertsInLoop(width, hidden, num_experts) for _ in range(num_blocks))

    def forward(self, x: Tensor) -> Tensor:
        for norm, mixture in zip(self.norms, self.mixtures, strict=True):
            x = x + mixture(norm(x))
        return x


class EnsembleMlp(nn.Module):
    """A deep ensemble (Lakshminarayanan et al. 2017): mean and variance of its members' predictions."""

    def __init__(self, num_members: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.members = nn.ModuleList()
        for _ in range(num_members):
            layers: list[nn.Module] = []
            for width, next_width in pairwise(widths):
                layers += [nn.Linear(width, next_width), nn.ReLU()]
            self.members.append(nn.Sequential(*layers[:-1]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [B, widths[0]] to mean and variance over members, each [B, widths[-1]]."""
        predictions = torch.stack([member(x) for member in self.members])
        mean = predictions.mean(0)
        return mean, ((predictions - mean) ** 2).mean(0)


def linear_attention() -> nn.Module:
    """Two pre-norm layers of linear attention, width 256, for long sequences."""
    return nn.Sequential(
        *(PreNormLayer(256, LinearAttention(256, 4), _mlp(256, 1024, 256)) for _ in range(2))
    )


def heads_loop() -> nn.Module:
    """A sentence encoder of MiniLM's shape, 6 layers, width 384, with its 12 heads written one by one."""
    return nn.Sequential(*(PreNormLayer(384, HeadsInLoop(384, 12), _mlp(384, 1536, 384)) for _ in range(6)))


def moe_loop() -> nn.Module:
    """Four blocks of 16 experts, 256 to 256 to 256."""
    return MixtureBlocks(width=256, hidden=256, num_experts=16, num_blocks=4)


def ensemble_mlp() -> nn.Module:
    """Sixteen networks 128, 512, 512, 16."""
    return EnsembleMlp(16, (128, 512, 512, 16))
