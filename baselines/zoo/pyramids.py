"""Multi-resolution networks: a UNet, a pyramid, an HRNet, a YOLO's head and neck, dilated convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.zoo.blocks import norm_conv


def _block(in_channels: int, out_channels: int, stride: int = 1) -> nn.Sequential:
    return norm_conv(in_channels, out_channels, 3, stride).append(nn.ReLU(inplace=True))


class UNet(nn.Module):
    """Ronneberger et al. 2015: images [B, 3, H, W] to a map of 4 classes; sizes divisible by 4."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down_1 = nn.Sequential(_block(3, width), _block(width, width))
        self.down_2 = nn.Sequential(_block(width, 2 * width), _block(2 * width, 2 * width))
        self.bottom = nn.Sequential(_block(2 * width, 4 * width), _block(4 * width, 4 * width))
        self.raise_2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.up_2 = _block(4 * width, 2 * width)
        self.raise_1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.up_1 = _block(2 * width, width)
        self.head = nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down_1(x)
        second = self.down_2(F.max_pool2d(first, 2))
        bottom = self.bottom(F.max_pool2d(second, 2))
        out = self.up_2(torch.cat([second, self.raise_2(bottom)], dim=1))
        out = self.up_1(torch.cat([first, self.raise_1(out)], dim=1))
        return self.head(out)


class FeaturePyramid(nn.Module):
    """Lin et al. 2017: images [B, 3, H, W] to maps of three sizes, by name."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            [_block(3, width, 2), _block(width, 2 * width, 2), _block(2 * width, 3 * width, 2)]
        )
        self.lateral = nn.ModuleList([nn.Conv2d(width * i, width, 1) for i in (1, 2, 3)])
        self.smooth = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(3)])

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        top = self.lateral[2](maps[2])
        found = {"p3": self.smooth[2](top)}
        for level in (1, 0):
            raised = F.interpolate(top, size=maps[level].shape[-2:], mode="nearest")
            top = self.lateral[level](maps[level]) + raised
            found[f"p{level + 1}"] = self.smooth[level](top)
        return found


class HighResolution(nn.Module):
    """Two parallel resolutions that exchange features (Wang et al. 2019)."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem = _block(3, width, 2)
        self.halve = _block(width, 2 * width, 2)
        self.fine = nn.ModuleList([_block(width, width) for _ in range(2)])
        self.coarse = nn.ModuleList([_block(2 * width, 2 * width) for _ in range(2)])
        self.to_fine = nn.ModuleList([norm_conv(2 * width, width) for _ in range(2)])
        self.to_coarse = nn.ModuleList([norm_conv(width, 2 * width, 3, 2) for _ in range(2)])
        self.head = nn.Conv2d(3 * width, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.stem(x)
        coarse = self.halve(fine)
        for i in range(2):
            fine, coarse = self.fine[i](fine), self.coarse[i](coarse)
            raised = F.interpolate(self.to_fine[i](coarse), scale_factor=2, mode="nearest")
            fine, coarse = F.relu(fine + raised), F.relu(coarse + self.to_coarse[i](fine))
        raised = F.interpolate(coarse, size=fine.shape[-2:], mode="bilinear", align_corners=False)
        return self.head(torch.cat([fine, raised], dim=1))


class CrossStage(nn.Module):
    """Half of the channels bypasses the bottlenecks, whose outputs are all kept (YOLOv8's block)."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        half = channels // 2
        self.enter = norm_conv(channels, channels).append(nn.SiLU(inplace=True))
        self.steps = nn.ModuleList([norm_conv(half, half, 3).append(nn.SiLU()) for _ in range(depth)])
        self.leave = norm_conv((2 + depth) * half, channels).append(nn.SiLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.enter(x).chunk(2, 1))
        for step in self.steps:
            parts.append(parts[-1] + step(parts[-1]))
        return self.leave(torch.cat(parts, 1))


class Yolo(nn.Module):
    """A one-shot detector: images [B, 3, H, W] to boxes [B, 4, N] and scores [B, 3, N]; sizes by 16."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.early = nn.Sequential(_block(3, width, 2), _block(width, width, 2), CrossStage(width, 1))
        self.late = nn.Sequential(_block(width, 2 * width, 2), CrossStage(2 * width, 2))
        self.squeeze = norm_conv(2 * width, width).append(nn.SiLU())
        self.spread = norm_conv(4 * width, 2 * width).append(nn.SiLU())
        self.neck = nn.Sequential(norm_conv(3 * width, width).append(nn.SiLU()), CrossStage(width, 1))
        self.heads = nn.ModuleList([nn.Conv2d(width, 7, 1), nn.Conv2d(2 * width, 7, 1)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        early = self.early(x)
        late = self.late(early)
        pools = [self.squeeze(late)]
        for _ in range(3):
            pools.append(F.max_pool2d(pools[-1], 5, stride=1, padding=2))
        late = self.spread(torch.cat(pools, 1))
        raised = F.interpolate(late, scale_factor=2.0)
        early = self.neck(torch.cat([raised, early], 1))
        found = torch.cat([head(m).flatten(2) for head, m in zip(self.heads, (early, late), strict=True)], 2)
        boxes, scores = found.split((4, 3), 1)
        low, high = boxes.chunk(2, 1)
        return torch.cat([(low + high) / 2, (high - low).exp()], 1), scores.sigmoid()


class DilatedPyramid(nn.Module):
    """DeepLab's head (Chen et al. 2017): several dilations and the whole image, upsampled to the input."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Sequential(_block(3, width, 2), _block(width, width, 2))
        self.branches = nn.ModuleList(
            [
                nn.Sequential(
                    nn.Conv2d(width, width, 3, padding=d, dilation=d, bias=False), nn.BatchNorm2d(width)
                )
                for d in (1, 2, 4)
            ]
        )
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1), nn.ReLU())
        self.head = nn.Sequential(_block(4 * width, width), nn.Conv2d(width, 4, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = self.stem(x)
        parts = [F.relu(branch(found)) for branch in self.branches]
        whole = F.interpolate(self.whole(found), size=found.shape[-2:], mode="bilinear", align_corners=False)
        out = self.head(torch.cat([*parts, whole], dim=1))
        return {"out": F.interpolate(out, size=x.shape[-2:], mode="bilinear", align_corners=False)}
