"""Audio, time-series and vision-language models."""

from __future__ import annotations

from functools import partial

import torch
import transformers
from torch import nn

from baselines.collection.architecture import (
    LAYERS,
    SEQ2SEQ,
    TEXT,
    Architecture,
    Arguments,
    Table,
    image,
    joined,
    of_transformers,
    prompt,
    tensors,
    text,
    words,
)

_IMAGE = LAYERS | {"image_size": 16, "patch_size": 8}
_WAVES = LAYERS | {
    "vocab_size": 20, "conv_dim": [16, 16, 16], "conv_stride": [5, 2, 2], "conv_kernel": [10, 3, 3],
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
_SPEECH = SEQ2SEQ | {"max_source_positions": 30, "max_target_positions": 40}
_IMAGE_TOKEN = 98
_audio = partial(of_transformers, "audio")
_multimodal = partial(of_transformers, "multimodal")
_wave = tensors(input_values=(400,))


def _decoder_words(batch: int) -> Arguments:
    return {"decoder_input_ids": words(batch, 7)}


def _illustrated(batch: int) -> Arguments:
    """A prompt that begins with the four patches of a small image."""
    ids = torch.cat([torch.full((batch, 4), _IMAGE_TOKEN), words(batch, 6, _IMAGE_TOKEN)], dim=1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)} | image(16)(batch)


def _llava() -> nn.Module:
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**_IMAGE),
        text_config=transformers.LlamaConfig(**TEXT, num_key_value_heads=2),
        image_token_index=_IMAGE_TOKEN,
    )
    return transformers.LlavaForConditionalGeneration(config)


def _captions() -> nn.Module:
    encoder = transformers.ViTConfig(**_IMAGE)
    decoder = transformers.BertConfig(**TEXT)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        encoder, decoder, decoder_start_token_id=1, pad_token_id=0, eos_token_id=2
    )
    return transformers.VisionEncoderDecoderModel(config=config)


SOUND: Table = {
    "wav2vec2": _audio("Wav2Vec2ForCTC", _wave, **_WAVES),
    "wav2vec2_stable": _audio(
        "Wav2Vec2Model", _wave, do_stable_layer_norm=True, feat_extract_norm="layer", **_WAVES
    ),
    "hubert": _audio("HubertModel", _wave, **_WAVES),
    "wavlm": _audio("WavLMModel", _wave, num_buckets=8, max_bucket_distance=20, **_WAVES),
    "ast": _audio(
        "ASTForAudioClassification", tensors(input_values=(32, 16)), max_length=32, num_mel_bins=16,
        patch_size=8, frequency_stride=8, time_stride=8, **LAYERS
    ),
    "whisper": _audio(
        "WhisperForConditionalGeneration", joined(tensors(input_features=(16, 60)), _decoder_words),
        ("dynamic", "static"), num_mel_bins=16, begin_suppress_tokens=None, **_SPEECH
    ),
    "speech_to_text": _audio(
        "Speech2TextForConditionalGeneration", joined(tensors(input_features=(40, 16)), _decoder_words),
        ("dynamic",), conv_channels=16, input_feat_per_channel=16, **_SPEECH
    ),
    "patchtst": of_transformers(
        "time series", "PatchTSTForPrediction", tensors(past_values=(16, 2)), num_input_channels=2,
        context_length=16, prediction_length=4, patch_length=4, patch_stride=4, d_model=16, ffn_dim=32,
        num_hidden_layers=2, num_attention_heads=4, loss="mse"
    ),
}  # fmt: skip

MULTIMODAL: Table = {
    "clip": _multimodal(
        "CLIPModel", joined(text, image(16)), text_config=TEXT, vision_config=_IMAGE, projection_dim=16
    ),
    "siglip": _multimodal("SiglipModel", joined(text, image(16)), text_config=TEXT, vision_config=_IMAGE),
    "blip": _multimodal(
        "BlipModel", joined(text, image(16)), text_config=TEXT | {"encoder_hidden_size": 32},
        vision_config=_IMAGE, projection_dim=16
    ),
    "git": _multimodal(
        "GitForCausalLM", joined(prompt, image(16)), ("dynamic",), vision_config=_IMAGE, **TEXT
    ),
    "llava": Architecture("multimodal", _llava, _illustrated, ("dynamic", "static")),
    "captions": Architecture("multimodal", _captions, joined(image(16), _decoder_words), ("dynamic",)),
}  # fmt: skip
