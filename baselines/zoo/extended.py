"""Models outside the suite in realistic sizes, to see whether results on the suite generalise.

Nothing was ever tuned on them. Those of `transformers` have the sizes of their published checkpoints.
"""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn

from baselines.zoo import diffusion, light, other_convolutions, pyramids
from baselines.zoo.entries import (
    CLASSES,
    NO_CACHE,
    Make,
    MakeInputs,
    PlainTensors,
    classifier,
    ids,
    image,
    text,
)


def _ghostnet() -> nn.Module:
    bottlenecks = [
        (16, 16, 1), (48, 24, 2), (72, 24, 1), (72, 40, 2), (120, 40, 1), (240, 80, 2), (200, 80, 1),
        (184, 80, 1), (184, 80, 1), (480, 112, 1), (672, 112, 1), (672, 160, 2), (960, 160, 1),
        (960, 160, 1), (960, 160, 1), (960, 160, 1),
    ]  # fmt: skip
    return light.GhostNet(16, bottlenecks, CLASSES)


def _noise(batch: int) -> tuple[Tensor, ...]:
    step = torch.randint(1000, (batch,))
    return torch.randn(batch, 4, 32, 32), step, torch.randn(batch, 77, 256)


#: Model and inputs by name, in the order of reports.
ENTRIES: dict[str, tuple[Make, MakeInputs]] = {
    "densenet121": (
        lambda: other_convolutions.DenseNet(32, (6, 12, 24, 16), has_pool=True, classes=CLASSES), image()
    ),
    "mobilenet_v2": (classifier("MobileNetV2ForImageClassification"), image()),
    "efficientnet_b0": (
        classifier("EfficientNetForImageClassification", width_coefficient=1.0, depth_coefficient=1.0,
            hidden_dim=1280), image()
    ),
    "shufflenet_v2": (
        lambda: light.ShuffleNet(24, ((116, 4), (232, 8), (464, 4)), last=1024, classes=CLASSES), image()
    ),
    "ghostnet": (_ghostnet, image()),
    "convnext_t": (classifier("ConvNextForImageClassification"), image()),
    "swin_t": (classifier("SwinForImageClassification"), image()),
    "regnet_y": (classifier("RegNetForImageClassification"), image()),
    "unet": (lambda: pyramids.UNet(32), image(128)),
    "yolo": (lambda: pyramids.Yolo(48), image(256)),
    "diffusion_unet": (lambda: diffusion.DiffusionUNet(128, 256), _noise),
    "electra_small": (text("ElectraModel", "last_hidden_state"), ids(30522, 128)),
    "opt_125m": (
        text("OPTForCausalLM", "logits", NO_CACHE, hidden_size=768, ffn_dim=3072, num_hidden_layers=12,
            num_attention_heads=12), ids(50000, 64)
    ),
    "bart_base": (
        text("BartModel", "last_hidden_state", NO_CACHE, d_model=768, encoder_layers=6, decoder_layers=6,
            encoder_ffn_dim=3072, decoder_ffn_dim=3072, encoder_attention_heads=12,
            decoder_attention_heads=12), ids(50000, 64)
    ),
    "clip_vision_b32": (
        lambda: PlainTensors(transformers.CLIPVisionModel(transformers.CLIPVisionConfig()), "pixel_values",
            ("pooler_output",)), image()
    ),
    "gemma_like": (
        text("GemmaForCausalLM", "logits", NO_CACHE, hidden_size=768, intermediate_size=3072,
            num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=1, head_dim=96, vocab_size=32000),
        ids(32000, 64)
    ),
}  # fmt: skip

NAMES: tuple[str, ...] = tuple(ENTRIES)
