"""SqueezeNet 1.1 (Iandola et al. 2016) and MobileNetV3-Large (Howard et al. 2019), as in torchvision."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.zoo.blocks import norm_conv


class Fire(nn.Module):
    """A 1x1 squeeze, then 1x1 and 3x3 expansions side by side."""

    def __init__(self, in_channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(in_channels, squeezed, 1)
        self.expand_1x1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand_3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x), inplace=True)
        return torch.cat(
            [F.relu(self.expand_1x1(x), inplace=True), F.relu(self.expand_3x3(x), inplace=True)], 1
        )


class SqueezeNet(nn.Module):
    """SqueezeNet 1.1: [B, 3, 224, 224] to logits [B, 1000]; 1.2 M parameters, no BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        pool = partial(nn.MaxPool2d, kernel_size=3, stride=2, ceil_mode=True)
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 3, stride=2), nn.ReLU(inplace=True), pool(),
            Fire(64, 16, 64), Fire(128, 16, 64), pool(),
            Fire(128, 32, 128), Fire(256, 32, 128), pool(),
            Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Conv2d(512, 1000, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x)).flatten(1)


class SqueezeExcite(nn.Module):
    """Scales each channel by a gate computed from the channels' means."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.expand(F.relu(self.reduce(self.pool(x))))
        return F.hardsigmoid(gate) * x


def _round_to_8(channels: float) -> int:
    """The nearest multiple of 8 that is not more than a tenth below `channels`."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _norm_conv(
    in_channels: int,
    out_channels: int,
    kernel: int,
    activation: type[nn.Module] | None,
    stride: int = 1,
    groups: int = 1,
) -> list[nn.Module]:
    layers = [*norm_conv(in_channels, out_channels, kernel, stride, groups, eps=0.001)]
    return layers if activation is None else [*layers, activation(inplace=True)]


class InvertedResidual(nn.Module):
    """Expand by 1x1, depth-wise filter, gate, project by 1x1; the input is added if the shapes match."""

    def __init__(
        self,
        in_channels: int,
        kernel: int,
        expanded: int,
        out_channels: int,
        has_gate: bool,
        has_swish: bool,
        stride: int,
    ) -> None:
        super().__init__()
        activation: type[nn.Module] = nn.Hardswish if has_swish else nn.ReLU
        layers = [] if expanded == in_channels else _norm_conv(in_channels, expanded, 1, activation)
        layers += _norm_conv(expanded, expanded, kernel, activation, stride, groups=expanded)
        if has_gate:
            layers.append(SqueezeExcite(expanded, _round_to_8(expanded / 4)))
        layers += _norm_conv(expanded, out_channels, 1, None)
        self.block = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(x)
        if self.has_shortcut:
            out += x
        return out


#: in, kernel, expanded, out, gate, hard swish, stride: table 1 of the paper.
_LARGE = (
    (16, 3, 16, 16, False, False, 1),
    (16, 3, 64, 24, False, False, 2),
    (24, 3, 72, 24, False, False, 1),
    (24, 5, 72, 40, True, False, 2),
    (40, 5, 120, 40, True, False, 1),
    (40, 5, 120, 40, True, False, 1),
    (40, 3, 240, 80, False, True, 2),
    (80, 3, 200, 80, False, True, 1),
    (80, 3, 184, 80, False, True, 1),
    (80, 3, 184, 80, False, True, 1),
    (80, 3, 480, 112, True, True, 1),
    (112, 3, 672, 112, True, True, 1),
    (112, 5, 672, 160, True, True, 2),
    (160, 5, 960, 160, True, True, 1),
    (160, 5, 960, 160, True, True, 1),
)


class MobileNetV3(nn.Module):
    """MobileNetV3-Large: [B, 3, 224, 224] to logits [B, 1000]; 5.5 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_norm_conv(3, 16, 3, nn.Hardswish, stride=2),
            *(InvertedResidual(*row) for row in _LARGE),
            *_norm_conv(160, 960, 1, nn.Hardswish),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(960, 1280),
            nn.Hardswish(inplace=True),
            nn.Dropout(0.2, inplace=True),
            nn.Linear(1280, 1000),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(x)).flatten(1))
