"""Small: GhostNet (Han et al. 2020), ShuffleNet v2 (Ma et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.zoo.blocks import norm_conv


class Gate(nn.Module):
    """Squeeze and excite: scales each channel by a gate computed from the channels' means."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.expand(F.silu(self.reduce(mean))))


class Ghost(nn.Module):
    """Half of the channels from a convolution, the other half from those by a cheap depth-wise one."""

    def __init__(self, in_channels: int, out_channels: int, has_relu: bool) -> None:
        super().__init__()
        half = out_channels // 2
        self.primary = norm_conv(in_channels, half)
        self.cheap = norm_conv(half, out_channels - half, 3, groups=half)
        self.relu = nn.ReLU(inplace=True) if has_relu else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        primary = self.relu(self.primary(x))
        return torch.cat([primary, self.relu(self.cheap(primary))], dim=1)


class GhostBottleneck(nn.Module):
    """Two ghost modules with a strided depth-wise filter between them, and a shortcut."""

    def __init__(self, in_channels: int, middle: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            Ghost(in_channels, middle, has_relu=True),
            *(norm_conv(middle, middle, 3, stride, groups=middle) if stride > 1 else ()),
            Gate(middle, middle // 4),
            Ghost(middle, out_channels, has_relu=False),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                *norm_conv(in_channels, in_channels, 3, stride, groups=in_channels),
                *norm_conv(in_channels, out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x) + self.shortcut(x)


class GhostNet(nn.Module):
    """GhostNet with 3x3 filters and a gate in each bottleneck: images [B, 3, H, W] to logits [B, classes].

    Args:
        width: of the stem.
        bottlenecks: inner channels, output channels, and stride of each.
        classes: number of logits.
    """

    def __init__(
        self,
        width: int = 8,
        bottlenecks: Sequence[tuple[int, int, int]] = ((16, 8, 1), (24, 12, 2), (36, 12, 1)),
        classes: int = 10,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [*norm_conv(3, width, 3, 2), nn.ReLU(inplace=True)]
        for middle, leaving, stride in bottlenecks:
            layers.append(GhostBottleneck(width, middle, leaving, stride))
            width = leaving
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


def shuffle(x: Tensor, groups: int) -> Tensor:
    """Interleaves the channels [B, C, H, W] of the groups."""
    batch, channels, height, width = x.shape
    split = x.view(batch, groups, channels // groups, height, width)
    return split.transpose(1, 2).contiguous().view(batch, channels, height, width)


class ShuffleUnit(nn.Module):
    """Passes one half of the channels through and filters the other; a strided unit filters both."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        half = out_channels // 2
        entering = in_channels if stride > 1 else half
        self.left: nn.Module | None = None
        if stride > 1:
            self.left = nn.Sequential(
                *norm_conv(in_channels, in_channels, 3, stride, groups=in_channels),
                *norm_conv(in_channels, half), nn.ReLU(inplace=True),
            )  # fmt: skip
        self.right = nn.Sequential(
            *norm_conv(entering, half), nn.ReLU(inplace=True),
            *norm_conv(half, half, 3, stride, groups=half),
            *norm_conv(half, half), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        if self.left is None:
            passed, filtered = x.chunk(2, dim=1)
            return shuffle(torch.cat([passed, self.right(filtered)], dim=1), 2)
        return shuffle(torch.cat([self.left(x), self.right(x)], dim=1), 2)


class ShuffleNet(nn.Module):
    """ShuffleNet v2: images [B, 3, H, W] to logits [B, classes].

    Args:
        width: of the stem.
        stages: channels and number of units of each.
        last: channels of a final 1x1 convolution; 0 for none.
        classes: number of logits.
    """

    def __init__(
        self,
        width: int = 12,
        stages: Sequence[tuple[int, int]] = ((24, 2), (48, 2)),
        last: int = 0,
        classes: int = 10,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *norm_conv(3, width, 3, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)
        )
        layers: list[nn.Module] = []
        for channels, units in stages:
            layers += [ShuffleUnit(width, channels, 2)]
            layers += [ShuffleUnit(channels, channels, 1) for _ in range(units - 1)]
            width = channels
        if last:
            layers += [*norm_conv(width, last), nn.ReLU(inplace=True)]
            width = last
        self.stages = nn.Sequential(*layers)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.stages(self.stem(x)).mean([2, 3]))
