"""Denoisers: a UNet with time embedding and cross attention (Rombach et al. 2022), a DiT (Peebles 2023)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def time_embedding(step: Tensor, width: int) -> Tensor:
    """Sines and cosines [B, width] of steps [B]."""
    half = width // 2
    rates = torch.exp(-math.log(10_000.0) * torch.arange(half, device=step.device) / half)
    angles = step[:, None].float() * rates[None]
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class TimedBlock(nn.Module):
    """Two convolutions with norm, with the time embedding added between them, and a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, time_width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(4, in_channels), nn.GroupNorm(4, out_channels)
        self.conv_1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.conv_2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.time = nn.Linear(time_width, out_channels)
        same = in_channels == out_channels
        self.shortcut = nn.Identity() if same else nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        out = self.conv_1(F.silu(self.norm_1(x)))
        out = out + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv_2(F.silu(self.norm_2(out)))


class Attention(nn.Module):
    """Attention of tokens [B, T, D] to a context [B, S, C], or self-attention."""

    def __init__(self, width: int, context_width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(context_width, width, bias=False)
        self.value = nn.Linear(context_width, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in (self.query(x), self.key(context), self.value(context))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class SpatialTransformer(nn.Module):
    """Pixels as tokens: self attention, cross attention, a gated feed-forward layer."""

    def __init__(self, channels: int, context_width: int, heads: int = 2) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels, eps=1e-6)
        self.enter, self.leave = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.norms = nn.ModuleList([nn.LayerNorm(channels) for _ in range(3)])
        self.own = Attention(channels, channels, heads)
        self.cross = Attention(channels, context_width, heads)
        self.gated, self.down = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        tokens = self.enter(self.norm(x)).permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        own = self.norms[0](tokens)
        tokens = tokens + self.own(own, own)
        tokens = tokens + self.cross(self.norms[1](tokens), context)
        value, gate = self.gated(self.norms[2](tokens)).chunk(2, dim=-1)
        tokens = tokens + self.down(value * F.gelu(gate))
        out = tokens.reshape(batch, height, width, channels).permute(0, 3, 1, 2).contiguous()
        return x + self.leave(out)


class DiffusionUNet(nn.Module):
    """Noise [B, 4, H, W] at steps [B], given a text [B, S, 12], to [B, 4, H, W]; sizes divisible by 2."""

    def __init__(self, width: int = 16, context_width: int = 12) -> None:
        super().__init__()
        self.width = width
        time_width = 2 * width
        self.time = nn.Sequential(nn.Linear(width, time_width), nn.SiLU(), nn.Linear(time_width, time_width))
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        self.down = TimedBlock(width, width, time_width)
        self.halve = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.middle = TimedBlock(width, 2 * width, time_width)
        self.attend = SpatialTransformer(2 * width, context_width)
        self.widen = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = TimedBlock(3 * width, width, time_width)
        self.leave = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1))

    def forward(self, x: Tensor, step: Tensor, context: Tensor) -> Tensor:
        time = self.time(time_embedding(step, self.width).to(x.dtype))
        fine = self.down(self.enter(x), time)
        coarse = self.attend(self.middle(self.halve(fine), time), context)
        raised = self.widen(F.interpolate(coarse, scale_factor=2.0, mode="nearest"))
        return self.leave(self.up(torch.cat([raised, fine], dim=1), time))


class DiffusionTransformer(nn.Module):
    """Noise [B, 4, 8, 8] at steps [B] of classes [B] to [B, 4, 8, 8], modulated by both."""

    def __init__(self, width: int = 24, depth: int = 2) -> None:
        super().__init__()
        self.width = width
        self.patches = nn.Conv2d(4, width, 2, stride=2)
        self.position = nn.Parameter(torch.randn(1, 16, width))
        self.classes = nn.Embedding(10, width)
        self.modulations = nn.ModuleList([nn.Linear(width, 6 * width) for _ in range(depth)])
        self.attention = nn.ModuleList([Attention(width, width, 2) for _ in range(depth)])
        self.wide = nn.ModuleList([nn.Linear(width, 2 * width) for _ in range(depth)])
        self.narrow = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(depth)])
        self.leave = nn.Linear(width, 16)

    def forward(self, x: Tensor, step: Tensor, label: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.position
        condition = F.silu(time_embedding(step, self.width).to(x.dtype) + self.classes(label))
        layers = zip(self.modulations, self.attention, self.wide, self.narrow, strict=True)
        for modulation, attention, wide, narrow in layers:
            parts = modulation(condition)[:, None].chunk(6, dim=-1)
            own = F.layer_norm(tokens, (self.width,), eps=1e-6) * (1 + parts[0]) + parts[1]
            tokens = tokens + parts[2] * attention(own, own)
            own = F.layer_norm(tokens, (self.width,), eps=1e-6) * (1 + parts[3]) + parts[4]
            tokens = tokens + parts[5] * narrow(F.gelu(wide(own), approximate="tanh"))
        out = self.leave(tokens).view(-1, 4, 4, 2, 2, 4)
        return torch.einsum("nhwpqc->nchpwq", out).reshape(-1, 4, 8, 8)
