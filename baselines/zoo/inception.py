"""Inception-v3 (Szegedy et al. 2015) without the auxiliary classifier; branches as in torchvision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_Size = int | tuple[int, int]


class NormConv(nn.Module):
    """Convolution without bias, BatchNorm, ReLU."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: _Size, stride: int = 1, padding: _Size = 0
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(out_channels, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)), inplace=True)


class AveragePool(nn.Module):
    """3x3 average that preserves the size; padding counts."""

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 3, stride=1, padding=1)


class Branches(nn.Module):
    """Runs each branch on the same input and concatenates the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _block_35(channels: int, pool_channels: int) -> Branches:
    return Branches(
        NormConv(channels, 64, 1),
        nn.Sequential(NormConv(channels, 48, 1), NormConv(48, 64, 5, padding=2)),
        nn.Sequential(
            NormConv(channels, 64, 1), NormConv(64, 96, 3, padding=1), NormConv(96, 96, 3, padding=1)
        ),
        nn.Sequential(AveragePool(), NormConv(channels, pool_channels, 1)),
    )


def _reduce_35_to_17(channels: int) -> Branches:
    return Branches(
        NormConv(channels, 384, 3, stride=2),
        nn.Sequential(
            NormConv(channels, 64, 1), NormConv(64, 96, 3, padding=1), NormConv(96, 96, 3, stride=2)
        ),
        nn.MaxPool2d(3, stride=2),
    )


def _row(in_channels: int, out_channels: int) -> NormConv:
    return NormConv(in_channels, out_channels, (1, 7), padding=(0, 3))


def _column(in_channels: int, out_channels: int) -> NormConv:
    return NormConv(in_channels, out_channels, (7, 1), padding=(3, 0))


def _block_17(width: int) -> Branches:
    return Branches(
        NormConv(768, 192, 1),
        nn.Sequential(NormConv(768, width, 1), _row(width, width), _column(width, 192)),
        nn.Sequential(
            NormConv(768, width, 1),
            _column(width, width),
            _row(width, width),
            _column(width, width),
            _row(width, 192),
        ),
        nn.Sequential(AveragePool(), NormConv(768, 192, 1)),
    )


def _reduce_17_to_8() -> Branches:
    return Branches(
        nn.Sequential(NormConv(768, 192, 1), NormConv(192, 320, 3, stride=2)),
        nn.Sequential(
            NormConv(768, 192, 1), _row(192, 192), _column(192, 192), NormConv(192, 192, 3, stride=2)
        ),
        nn.MaxPool2d(3, stride=2),
    )


def _row_and_column() -> Branches:
    return Branches(NormConv(384, 384, (1, 3), padding=(0, 1)), NormConv(384, 384, (3, 1), padding=(1, 0)))


def _block_8(channels: int) -> Branches:
    return Branches(
        NormConv(channels, 320, 1),
        nn.Sequential(NormConv(channels, 384, 1), _row_and_column()),
        nn.Sequential(NormConv(channels, 448, 1), NormConv(448, 384, 3, padding=1), _row_and_column()),
        nn.Sequential(AveragePool(), NormConv(channels, 192, 1)),
    )


class InceptionV3(nn.Module):
    """Inception-v3: [B, 3, 299, 299] to logits [B, 1000]; 23.8 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            NormConv(3, 32, 3, stride=2), NormConv(32, 32, 3), NormConv(32, 64, 3, padding=1),
            nn.MaxPool2d(3, stride=2),
            NormConv(64, 80, 1), NormConv(80, 192, 3),
            nn.MaxPool2d(3, stride=2),
            _block_35(192, 32), _block_35(256, 64), _block_35(288, 64),
            _reduce_35_to_17(288),
            _block_17(128), _block_17(160), _block_17(160), _block_17(192),
            _reduce_17_to_8(),
            _block_8(1280), _block_8(2048),
        )  # fmt: skip
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout()
        self.classifier = nn.Linear(2048, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.features(x))
        return self.classifier(self.dropout(x).flatten(1))
