"""RepVGG-A0 (Ding et al. 2021) and MobileOne-S0 (Vasu et al. 2023) in training form.

Both are trained with parallel branches and meant to be deployed as one convolution per block. The suite has
the training form as it is after training: every branch with its own BatchNorm.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from baselines.zoo.blocks import norm_conv


class RepVggBlock(nn.Module):
    """relu(3x3 + 1x1 + identity), each branch with a BatchNorm; the identity only if the shapes match."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        same = in_channels == out_channels and stride == 1
        self.identity = nn.BatchNorm2d(in_channels) if same else None
        self.dense = norm_conv(in_channels, out_channels, 3, stride)
        self.pointwise = norm_conv(in_channels, out_channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.dense(x) + self.pointwise(x)
        if self.identity is not None:
            out = out + self.identity(x)
        return F.relu(out)


class MobileOneBlock(nn.Module):
    """relu(k parallel convolutions + 1x1 scale + identity), each branch with a BatchNorm.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel: 3 (depth-wise, or the dense first layer) or 1 (point-wise).
        stride: Stride of all branches.
        groups: Groups of all branches.
        num_branches: The over-parametrisation k.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        num_branches: int = 1,
    ) -> None:
        super().__init__()
        same = in_channels == out_channels and stride == 1
        self.identity = nn.BatchNorm2d(in_channels) if same else None
        self.scale = norm_conv(in_channels, out_channels, 1, stride, groups) if kernel > 1 else None
        self.convs = nn.ModuleList(
            norm_conv(in_channels, out_channels, kernel, stride, groups) for _ in range(num_branches)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor | int = 0
        if self.identity is not None:
            out = out + self.identity(x)
        if self.scale is not None:
            out = out + self.scale(x)
        for conv in self.convs:
            out = out + conv(x)
        if isinstance(out, int):
            raise ValueError("a MobileOne block needs at least one branch")
        return F.relu(out)


class Stacked(nn.Module):
    """Blocks, the mean over the pixels, and a linear layer: [B, 3, 224, 224] to logits [B, 1000].

    Args:
        blocks: Applied one after the other.
        channels: That the last one gives.
    """

    def __init__(self, blocks: Sequence[nn.Module], channels: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.blocks(x)).flatten(1))


def repvgg_a0() -> nn.Module:
    """RepVGG-A0 in training form: 9.1 M parameters."""
    channels = 48
    blocks = [RepVggBlock(3, channels, stride=2)]
    for depth, width in ((2, 48), (4, 96), (14, 192), (1, 1280)):
        for index in range(depth):
            blocks.append(RepVggBlock(channels, width, stride=2 if index == 0 else 1))
            channels = width
    return Stacked(blocks, channels)


def mobileone_s0() -> nn.Module:
    """MobileOne-S0 in training form, four branches: 5.3 M parameters."""
    channels = 48
    blocks = [MobileOneBlock(3, channels, kernel=3, stride=2)]
    for depth, width in ((2, 48), (8, 128), (10, 256), (1, 1024)):
        for index in range(depth):
            stride = 2 if index == 0 else 1
            blocks.append(MobileOneBlock(channels, channels, 3, stride, channels, num_branches=4))
            blocks.append(MobileOneBlock(channels, width, 1, num_branches=4))
            channels = width
    return Stacked(blocks, channels)
