"""Other convolutional networks: DenseNet, 1d and 3d convolutions, MLP-Mixer, points, super-resolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DenseLayer(nn.Module):
    """Norm, ReLU, 1x1; norm, ReLU, 3x3; the result is concatenated to the input's channels."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(4 * growth)
        self.conv_1 = nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.conv_2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv_1(F.relu(self.norm_1(x)))
        return torch.cat([x, self.conv_2(F.relu(self.norm_2(new)))], 1)


class DenseNet(nn.Module):
    """Huang et al. 2017: images [B, 3, H, W] to logits [B, classes].

    Args:
        growth: channels that a layer appends.
        blocks: number of layers of each.
        has_pool: whether to use the published stem, 7x7 followed by a pool; otherwise a small one.
        classes: number of logits.
    """

    def __init__(
        self, growth: int = 8, blocks: Sequence[int] = (3, 3), has_pool: bool = False, classes: int = 10
    ) -> None:
        super().__init__()
        channels = 2 * growth
        layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, 2, 1, bias=False)]
        if has_pool:
            layers = [nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
            layers.append(nn.MaxPool2d(3, 2, 1))
        for block, count in enumerate(blocks):
            for _ in range(count):
                layers.append(DenseLayer(channels, growth))
                channels += growth
            if block < len(blocks) - 1:
                layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1)]
                layers.append(nn.AvgPool2d(2))
                channels //= 2
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(channels))
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(F.adaptive_avg_pool2d(F.relu(self.features(x)), (1, 1)).flatten(1))


class TemporalConvolutions(nn.Module):
    """WaveNet's gated and dilated causal convolutions: [B, 4, T] to [B, 3, T]."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.enter = nn.Conv1d(4, width, 1)
        self.gates = nn.ModuleList([nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(4)])
        self.skips = nn.ModuleList([nn.Conv1d(width, 2 * width, 1) for _ in range(4)])
        self.leave = nn.Sequential(nn.ReLU(), nn.Conv1d(width, 3, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        total = torch.zeros_like(x)
        for i, (gate, skip) in enumerate(zip(self.gates, self.skips, strict=True)):
            value, opening = gate(F.pad(x, (2**i, 0))).chunk(2, dim=1)
            residual, skipped = skip(torch.tanh(value) * torch.sigmoid(opening)).chunk(2, dim=1)
            x, total = x + residual, total + skipped
        return self.leave(total)


class Volume(nn.Module):
    """Residual convolutions over volumes: [B, 1, D, H, W] to logits [B, 3]."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv3d(1, width, 3, 2, 1, bias=False), nn.BatchNorm3d(width), nn.ReLU())
        self.block = nn.Sequential(
            nn.Conv3d(width, width, 3, padding=1, bias=False), nn.BatchNorm3d(width), nn.ReLU(),
            nn.Conv3d(width, width, (1, 3, 3), padding=(0, 1, 1)), nn.BatchNorm3d(width),
        )  # fmt: skip
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.max_pool3d(F.relu(x + self.block(x)), 2)
        return self.head(x.mean((2, 3, 4)))


class Mixer(nn.Module):
    """MLP-Mixer (Tolstikhin et al. 2021): images [B, 3, 32, 32] to logits [B, 10]."""

    def __init__(self, width: int = 24, depth: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2 * depth)])
        self.across = nn.ModuleList(
            [nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(depth)]
        )
        self.along = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width)) for _ in range(depth)]
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for i, (across, along) in enumerate(zip(self.across, self.along, strict=True)):
            x = x + across(self.norms[2 * i](x).mT).mT
            x = x + along(self.norms[2 * i + 1](x))
        return self.head(x)[:, 0] + self.head(x.mean(1))


class PointNet(nn.Module):
    """Qi et al. 2017 with its learned rotation: points [B, N, 3] to logits [B, 5]."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, width, 1), nn.BatchNorm1d(width), nn.ReLU())
        self.turn_head = nn.Linear(width, 9)
        self.features = nn.Sequential(
            nn.Conv1d(3, width, 1), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, 2 * width, 1), nn.BatchNorm1d(2 * width),
        )  # fmt: skip
        self.head = nn.Sequential(
            nn.Linear(2 * width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 5)
        )

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        turn = self.turn_head(self.turn(points.transpose(1, 2)).max(dim=2).values)
        turn = turn.view(-1, 3, 3) + torch.eye(3, device=points.device)
        found = self.features(torch.bmm(points, turn).transpose(1, 2))
        best, where = torch.max(found, 2)
        return F.log_softmax(self.head(best), dim=1), where


class SuperResolution(nn.Module):
    """Residual dense convolutions and a pixel shuffle: images [B, 3, H, W] to [B, 3, 2H, 2W]."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1, padding_mode="reflect")
        self.dense = nn.ModuleList([nn.Conv2d(width * (i + 1), width, 3, padding=1) for i in range(3)])
        self.join = nn.Conv2d(4 * width, width, 1)
        self.leave = nn.Sequential(
            nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2), nn.PReLU(3), nn.Hardtanh(-2.0, 2.0)
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.enter(x)]
        for conv in self.dense:
            kept.append(F.leaky_relu(conv(torch.cat(kept, 1)), 0.2))
        low = self.join(torch.cat(kept, 1)) * 0.2 + kept[0]
        return self.leave(low) + F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)
