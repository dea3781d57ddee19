"""NASNet-A mobile, 4 @ 1056 (Zoph et al. 2018): 15 searched cells of separable convolutions and pools.

Cells and wiring follow the published network; strided operators pad symmetrically, where the original pads
as TensorFlow's "SAME" does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=0.001)


def _separable(in_channels: int, out_channels: int, kernel: int, stride: int) -> list[nn.Module]:
    padding = kernel // 2
    return [
        nn.ReLU(),
        nn.Conv2d(in_channels, in_channels, kernel, stride, padding, groups=in_channels, bias=False),
        nn.Conv2d(in_channels, out_channels, 1, bias=False),
        _norm(out_channels),
    ]


def separable_twice(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """The searched "separable convolution": relu, depth-wise, point-wise, norm, applied twice."""
    return nn.Sequential(
        *_separable(in_channels, out_channels, kernel, stride),
        *_separable(out_channels, out_channels, kernel, 1),
    )


def _average(stride: int = 1) -> nn.AvgPool2d:
    return nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)


def _squeeze(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(nn.ReLU(), nn.Conv2d(in_channels, out_channels, 1, bias=False), _norm(out_channels))


class FactorisedReduction(nn.Module):
    """Halves the resolution with two 1x1 convolutions, on pixels of even and of odd position."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.even = nn.Sequential(
            nn.AvgPool2d(1, stride=2), nn.Conv2d(in_channels, out_channels // 2, 1, bias=False)
        )
        self.shift = nn.ZeroPad2d((0, 1, 0, 1))
        self.odd = nn.Sequential(
            nn.AvgPool2d(1, stride=2), nn.Conv2d(in_channels, out_channels // 2, 1, bias=False)
        )
        self.norm = _norm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(x)
        shifted = self.shift(x)[:, :, 1:, 1:]
        return self.norm(torch.cat([self.even(x), self.odd(shifted)], 1))


class NormalCell(nn.Module):
    """Five pairs of operators over the two previous cells' outputs; keeps the resolution.

    Args:
        channels: Channels of the previous cell's output.
        earlier_channels: Channels of the output of the cell before it.
        filters: Channels of each of the six concatenated parts of the result.
        is_earlier_larger: Whether the earlier output has twice the resolution.
    """

    def __init__(self, channels: int, earlier_channels: int, filters: int, is_earlier_larger: bool) -> None:
        super().__init__()
        self.fit_earlier = (FactorisedReduction if is_earlier_larger else _squeeze)(earlier_channels, filters)
        self.fit = _squeeze(channels, filters)
        self.pair_0_left = separable_twice(filters, filters, 5)
        self.pair_0_right = separable_twice(filters, filters, 3)
        self.pair_1_left = separable_twice(filters, filters, 5)
        self.pair_1_right = separable_twice(filters, filters, 3)
        self.pair_2_left = _average()
        self.pair_3_left = _average()
        self.pair_3_right = _average()
        self.pair_4_left = separable_twice(filters, filters, 3)

    def forward(self, x: Tensor, earlier: Tensor) -> Tensor:
        left = self.fit_earlier(earlier)
        right = self.fit(x)
        pairs = [
            self.pair_0_left(right) + self.pair_0_right(left),
            self.pair_1_left(left) + self.pair_1_right(left),
            self.pair_2_left(right) + left,
            self.pair_3_left(left) + self.pair_3_right(left),
            self.pair_4_left(right) + right,
        ]
        return torch.cat([left, *pairs], 1)


class ReductionCell(nn.Module):
    """Five pairs of operators, those on the cell's inputs with stride 2; halves the resolution.

    Args:
        fit: Projects the previous cell's output to `filters` channels.
        fit_earlier: Projects the earlier output to `earlier_filters` channels at the same resolution.
        filters: Channels of each of the four concatenated parts of the result.
        earlier_filters: Output channels of `fit_earlier`.
    """

    def __init__(self, fit: nn.Module, fit_earlier: nn.Module, filters: int, earlier_filters: int) -> None:
        super().__init__()
        self.fit = fit
        self.fit_earlier = fit_earlier
        self.pair_0_left = separable_twice(filters, filters, 5, stride=2)
        self.pair_0_right = separable_twice(earlier_filters, filters, 7, stride=2)
        self.pair_1_left = nn.MaxPool2d(3, stride=2, padding=1)
        self.pair_1_right = separable_twice(earlier_filters, filters, 7, stride=2)
        self.pair_2_left = _average(stride=2)
        self.pair_2_right = separable_twice(earlier_filters, filters, 5, stride=2)
        self.pair_3_right = _average()
        self.pair_4_left = separable_twice(filters, filters, 3)
        self.pair_4_right = nn.MaxPool2d(3, stride=2, padding=1)

    def forward(self, x: Tensor, earlier: Tensor) -> Tensor:
        left = self.fit_earlier(earlier)
        right = self.fit(x)
        pair_0 = self.pair_0_left(right) + self.pair_0_right(left)
        pair_1 = self.pair_1_left(right) + self.pair_1_right(left)
        pair_2 = self.pair_2_left(right) + self.pair_2_right(left)
        pair_3 = self.pair_3_right(pair_0) + pair_1
        pair_4 = self.pair_4_left(pair_0) + self.pair_4_right(right)
        return torch.cat([pair_1, pair_2, pair_3, pair_4], 1)


class NasNetA(nn.Module):
    """NASNet-A: [B, 3, 224, 224] to logits [B, 1000].

    Args:
        repeats: Normal cells in each of the three groups.
        filters: Channels of a part of a normal cell in the first group; doubled in each next one.
    """

    def __init__(self, repeats: int, filters: int) -> None:
        super().__init__()
        stem_filters = 32
        self.stem_conv = nn.Sequential(
            nn.Conv2d(3, stem_filters, 3, stride=2, bias=False), _norm(stem_filters)
        )
        quarter, half = filters // 4, filters // 2
        # The first reduction uses the stem twice, once without projection: there is no earlier cell.
        first = ReductionCell(_squeeze(stem_filters, quarter), nn.Identity(), quarter, stem_filters)
        second = ReductionCell(
            _squeeze(4 * quarter, half), FactorisedReduction(stem_filters, half), half, half
        )
        self.stem_cells = nn.ModuleList([first, second])
        earlier_channels, channels = 4 * quarter, 4 * half
        is_earlier_larger = True
        cells: list[nn.Module] = []
        for group in range(3):
            width = filters << group
            if group > 0:
                fit, fit_earlier = _squeeze(channels, width), _squeeze(earlier_channels, width)
                cells.append(ReductionCell(fit, fit_earlier, width, width))
                earlier_channels, channels = channels, 4 * width
                is_earlier_larger = True
            for _ in range(repeats):
                cells.append(NormalCell(channels, earlier_channels, width, is_earlier_larger))
                earlier_channels, channels = channels, 6 * width
                is_earlier_larger = False
        self.cells = nn.ModuleList(cells)
        self.head = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout())
        self.classifier = nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        stem = self.stem_conv(x)
        earlier = self.stem_cells[0](stem, stem)
        x = self.stem_cells[1](earlier, stem)
        for cell in self.cells:
            x, earlier = cell(x, earlier), x
        return self.classifier(self.head(x))


def nasnet_a() -> nn.Module:
    """NASNet-A mobile: 4 normal cells a group, 1056 channels at the end; 5.3 M parameters."""
    return NasNetA(repeats=4, filters=44)
