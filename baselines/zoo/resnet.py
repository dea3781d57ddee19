"""ResNet-18 and -50 (He et al. 2015, strides as in torchvision), ResNeXt-50 32x4d (Xie et al. 2016)."""

from __future__ import annotations

from torch import Tensor, nn

from baselines.zoo.blocks import norm_conv


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x)) on [B, C, H, W]."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.branch(x)
        out += self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    """A residual network: [B, 3, 224, 224] to logits [B, 1000].

    Args:
        depths: Number of blocks of each of the four stages.
        is_bottleneck: 1x1, 3x3, 1x1 blocks instead of two 3x3 ones.
        groups: Groups of the 3x3 convolution of a bottleneck.
        group_width: Channels of a group in the first stage, 64 for one group.
    """

    def __init__(
        self, depths: tuple[int, int, int, int], is_bottleneck: bool, groups: int = 1, group_width: int = 64
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *norm_conv(3, 64, 7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        channels = 64
        stages: list[nn.Module] = []
        for stage, depth in enumerate(depths):
            planes = 64 << stage
            out_channels = planes * (4 if is_bottleneck else 1)
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                if is_bottleneck:
                    width = planes * group_width * groups // 64
                    branch = nn.Sequential(
                        *norm_conv(channels, width, 1), nn.ReLU(inplace=True),
                        *norm_conv(width, width, 3, stride, groups), nn.ReLU(inplace=True),
                        *norm_conv(width, out_channels, 1),
                    )  # fmt: skip
                else:
                    branch = nn.Sequential(
                        *norm_conv(channels, planes, 3, stride), nn.ReLU(inplace=True),
                        *norm_conv(planes, planes, 3),
                    )  # fmt: skip
                same = stride == 1 and channels == out_channels
                shortcut = nn.Identity() if same else norm_conv(channels, out_channels, 1, stride)
                stages.append(Residual(branch, shortcut))
                channels = out_channels
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, 1000)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.stages(self.stem(x)))
        return self.classifier(x.flatten(1))


def resnet18() -> nn.Module:
    """ResNet-18: 11.7 M parameters."""
    return ResNet((2, 2, 2, 2), is_bottleneck=False)


def resnet50() -> nn.Module:
    """ResNet-50: 25.6 M parameters."""
    return ResNet((3, 4, 6, 3), is_bottleneck=True)


def resnext50_32x4d() -> nn.Module:
    """ResNeXt-50 with 32 groups of 4 channels: 25.0 M parameters."""
    return ResNet((3, 4, 6, 3), is_bottleneck=True, groups=32, group_width=4)
