"""Image models: transformers and convolutional networks of the `transformers` package."""

from __future__ import annotations

from functools import partial
from typing import Any

import transformers
from torch import nn

from baselines.collection.architecture import LAYERS, Architecture, Table, image, of_transformers

_PATCHES: dict[str, Any] = LAYERS | {"image_size": 32, "patch_size": 8}
_STAGES: dict[str, Any] = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
_WINDOWS: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
_small, _large = image(32), image(64)
_vision = partial(of_transformers, "vision")
_convolutional = partial(of_transformers, "convolutional")


def _detr() -> nn.Module:
    backbone = transformers.ResNetConfig(
        embedding_size=8, out_features=["stage4"], layer_type="basic", **_STAGES
    )
    config = transformers.DetrConfig(
        backbone_config=backbone, use_timm_backbone=False, d_model=32, num_queries=5,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64,
    )  # fmt: skip
    return transformers.DetrForObjectDetection(config)


TRANSFORMERS: Table = {
    "vit": _vision("ViTForImageClassification", _small, **_PATCHES),
    "deit": _vision("DeiTForImageClassificationWithTeacher", _small, **_PATCHES),
    "beit": _vision("BeitForImageClassification", _small, use_relative_position_bias=True, **_PATCHES),
    "dinov2": _vision("Dinov2Model", _small, **_PATCHES),
    "yolos": _vision(
        "YolosForObjectDetection", _small, num_detection_tokens=3, **_PATCHES | {"image_size": [32, 32]}
    ),
    "swin": _vision("SwinForImageClassification", _small, **_WINDOWS),
    "swinv2": _vision("Swinv2ForImageClassification", _small, **_WINDOWS),
    "pvt": _vision(
        "PvtForImageClassification", _large, image_size=64, num_attention_heads=[1, 2, 2, 4], mlp_ratios=[2,
        2, 2, 2], **_STAGES
    ),
    "cvt": _vision(
        "CvtForImageClassification", _large, embed_dim=[8, 16, 32], num_heads=[1, 2, 4], depth=[1, 2, 3],
        drop_path_rate=[0.0, 0.0, 0.0]
    ),
    "segformer": _vision(
        "SegformerForSemanticSegmentation", _large, num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16,
        **_STAGES
    ),
    "levit": _vision(
        "LevitForImageClassification", _large, image_size=64, hidden_sizes=[16, 24, 32],
        num_attention_heads=[2, 3, 4], depths=[1, 1, 1], key_dim=[8, 8, 8]
    ),
    "mobilevit": _vision(
        "MobileViTForImageClassification", _large, image_size=64, hidden_sizes=[16, 24, 32],
        neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 64]
    ),
    "swiftformer": _vision(
        "SwiftFormerForImageClassification", _large, image_size=64, embed_dims=[8, 16, 24, 32], depths=[1, 1,
        1, 1], layer_scale_init_value=0.5
    ),
    "hiera": _vision(
        "HieraForImageClassification", _large, image_size=[64, 64], embed_dim=8, depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 4]
    ),
    "detr": Architecture("vision", _detr, _large),
}  # fmt: skip

CONVOLUTIONS: Table = {
    "resnet": _convolutional("ResNetForImageClassification", _large, embedding_size=8, **_STAGES),
    "regnet": _convolutional(
        "RegNetForImageClassification", _large, embedding_size=8, groups_width=8, **_STAGES
    ),
    "convnext": _convolutional(
        "ConvNextForImageClassification", _large, layer_scale_init_value=0.5, **_STAGES
    ),
    "convnextv2": _convolutional("ConvNextV2ForImageClassification", _large, **_STAGES),
    "poolformer": _convolutional(
        "PoolFormerForImageClassification", _large, layer_scale_init_value=0.5, **_STAGES
    ),
    "focalnet": _convolutional(
        "FocalNetForImageClassification", _large, image_size=64, embed_dim=8, depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 64, 64]
    ),
    "bit": _convolutional("BitForImageClassification", _large, embedding_size=16, num_groups=4, **_STAGES),
    "efficientnet": _convolutional(
        "EfficientNetForImageClassification", _large, image_size=64, width_coefficient=0.25,
        depth_coefficient=0.25, hidden_dim=320
    ),
    "mobilenet_v1": _convolutional(
        "MobileNetV1ForImageClassification", _large, image_size=64, depth_multiplier=0.25
    ),
    "mobilenet_v2": _convolutional(
        "MobileNetV2ForImageClassification", _large, image_size=64, depth_multiplier=0.25
    ),
}  # fmt: skip
