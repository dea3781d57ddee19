"""Models on which no constant of the package was tuned: the final test of generalisation.

Those of `transformers` have the sizes of their published checkpoints, except for the smaller BERT.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from baselines.zoo.entries import Make, MakeInputs, classifier, ids, image, text


class _Residual(nn.Module):
    """Two convolutions of a residual network for small images (He et al. 2016)."""

    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(narrow, wide, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(wide), nn.BatchNorm2d(wide)])
        self.short = nn.Identity() if narrow == wide else nn.Conv2d(narrow, wide, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + self.short(x))


def _resnet56() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    narrow = 16
    for wide in (16, 32, 64):
        for place in range(9):
            layers.append(_Residual(narrow, wide, 2 if place == 0 and wide > 16 else 1))
            narrow = wide
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class _Dilated(nn.Module):
    """A step of a temporal convolutional network (Bai et al. 2018), without its dropout."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.wide = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(torch.relu(self.wide(x)))


class _Experts(nn.Module):
    """48 experts of three widths, all evaluated and weighted by a gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = [width * 3 // 4 + 16 * (place % 3) for place in range(48)]
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, each), nn.GELU(), nn.Linear(each, width)) for each in inner
        )
        self.gate = nn.Linear(width, 48)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.gate(x).softmax(-1)
        return torch.stack([gates[:, i : i + 1] * each(x) for i, each in enumerate(self.experts)]).sum(0)


#: Model and inputs by name, in the order of reports.
ENTRIES: dict[str, tuple[Make, MakeInputs]] = {
    "mobilenet_v1": (classifier("MobileNetV1ForImageClassification"), image()),
    "mobilevit_s": (classifier("MobileViTForImageClassification"), image(256)),
    "mobilevit_v2": (classifier("MobileViTV2ForImageClassification"), image(256)),
    "levit_128s": (
        classifier("LevitForImageClassification", depths=[2, 3, 4], num_attention_heads=[4, 6, 8]), image()
    ),
    "poolformer_s12": (classifier("PoolFormerForImageClassification"), image()),
    "segformer_b0": (classifier("SegformerForImageClassification"), image(256)),
    "convnextv2_atto": (
        classifier("ConvNextV2ForImageClassification", depths=[2, 2, 6, 2], hidden_sizes=[40, 80, 160, 320]),
        image()
    ),
    "regnet_x_400mf": (
        classifier("RegNetForImageClassification", hidden_sizes=[32, 64, 160, 400], depths=[1, 2, 7, 12],
            groups_width=16, layer_type="x"), image()
    ),
    "pvt_tiny": (classifier("PvtForImageClassification"), image()),
    "efficientnet_b2": (
        classifier("EfficientNetForImageClassification", width_coefficient=1.1, depth_coefficient=1.2,
            hidden_dim=1408, image_size=260), image(260)
    ),
    "deit_tiny": (
        classifier("DeiTForImageClassification", hidden_size=192, num_attention_heads=3,
            intermediate_size=768), image()
    ),
    "dinov2_small": (
        classifier("Dinov2ForImageClassification", hidden_size=384, num_attention_heads=6), image()
    ),
    "distilbert": (text("DistilBertModel", "last_hidden_state"), ids(30522, 128)),
    "albert_base": (
        text("AlbertModel", "last_hidden_state", hidden_size=768, num_attention_heads=12,
            intermediate_size=3072), ids(30000, 128)
    ),
    "squeezebert": (text("SqueezeBertModel", "last_hidden_state"), ids(30522, 128)),
    "mobilebert": (text("MobileBertModel", "last_hidden_state"), ids(30522, 64)),
    "bert_tiny_128": (
        text("BertModel", "last_hidden_state", hidden_size=128, num_hidden_layers=4, num_attention_heads=2,
            intermediate_size=512), ids(30522, 128)
    ),
    "resnet56": (_resnet56, image(32)),
    "temporal_convs": (
        lambda: nn.Sequential(*[_Dilated(32, 2 ** (place % 8)) for place in range(40)]), lambda batch:
        (torch.randn(batch, 32, 256),)
    ),
    "gated_experts": (lambda: _Experts(128), lambda batch: (torch.randn(4 * batch, 128),)),
}  # fmt: skip

NAMES: tuple[str, ...] = tuple(ENTRIES)
