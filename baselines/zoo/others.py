"""More models that only others wrote: of `transformers`, with the sizes of its configurations' defaults.

Where a default is too large for a CPU, the numbers of layers and widths are those of a small checkpoint.
"""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn

from baselines.zoo.entries import NO_CACHE, Make, MakeInputs, classifier, ids, image, plain, text


def _sound(batch: int) -> tuple[Tensor, ...]:
    """A second of mono sound, [B, T]."""
    return (torch.randn(batch, 16_000),)


def _vocoder() -> nn.Module:
    return transformers.SpeechT5HifiGan(transformers.SpeechT5HifiGanConfig(upsample_initial_channel=256))


#: Model and inputs by name, in the order of reports.
ENTRIES: dict[str, tuple[Make, MakeInputs]] = {
    "swinv2_tiny": (classifier("Swinv2ForImageClassification", image_size=256, window_size=8), image(256)),
    "focalnet_tiny": (classifier("FocalNetForImageClassification"), image()),
    "cvt_13": (classifier("CvtForImageClassification"), image()),
    "hiera_tiny": (classifier("HieraForImageClassification"), image()),
    "bit_50": (classifier("BitForImageClassification"), image()),
    "siglip_vision": (
        plain("SiglipVisionModel", "pixel_values", "last_hidden_state", num_hidden_layers=4), image()
    ),
    "vit_base": (classifier("ViTForImageClassification"), image()),
    "modernbert_base": (text("ModernBertModel", "last_hidden_state"), ids(50000, 128)),
    "deberta_v3_small": (
        text("DebertaV2Model", "last_hidden_state", hidden_size=768, num_hidden_layers=6,
            num_attention_heads=12, intermediate_size=3072, relative_attention=True, position_buckets=256,
            norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"],
            position_biased_input=False), ids(128000, 64)
    ),
    "mpnet_base": (text("MPNetModel", "last_hidden_state"), ids(30000, 128)),
    "t5_small_encoder": (text("T5EncoderModel", "last_hidden_state"), ids(32000, 128)),
    "qwen3_small": (
        text("Qwen3ForCausalLM", "logits", NO_CACHE, hidden_size=512, intermediate_size=1536,
            num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2, head_dim=64, vocab_size=32000),
        ids(32000, 64)
    ),
    "wav2vec2_base": (plain("Wav2Vec2Model", "input_values", "last_hidden_state"), _sound),
    "wavlm_small": (
        plain("WavLMModel", "input_values", "last_hidden_state", num_hidden_layers=4), _sound
    ),
    "hifi_gan": (_vocoder, lambda batch: (torch.randn(batch, 64, 80),)),
    "patchtst": (
        plain("PatchTSTForPrediction", "past_values", "prediction_outputs", num_input_channels=7,
            context_length=512, patch_length=16, patch_stride=8, prediction_length=96),
        lambda batch: (torch.randn(batch, 512, 7),)
    ),
}  # fmt: skip

NAMES: tuple[str, ...] = tuple(ENTRIES)
