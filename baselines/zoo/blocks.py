"""Building blocks shared by several of these models."""

from __future__ import annotations

from torch import nn


def norm_conv(
    in_channels: int, out_channels: int, kernel: int = 1, stride: int = 1, groups: int = 1, eps: float = 1e-5
) -> nn.Sequential:
    """A convolution that preserves the size, except for its stride, followed by BatchNorm."""
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels, eps))
