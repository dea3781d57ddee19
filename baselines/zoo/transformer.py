"""Transformers with random weights: BERT, BERT with LoRA adapters, GPT-2, a Llama, a ViT.

They come from the `transformers` package with its defaults (default attention, no key-value cache); a thin
wrapper returns plain tensors. Weights are drawn twice as wide as at the start of training, so that attention
is not close to uniform.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn

_INITIALISER_RANGE = 0.04


class PlainTensors(nn.Module):
    """Calls a `transformers` model with one input and returns the named fields of its result.

    Args:
        model: The model.
        argument: Name of the argument for the input.
        fields: Names of the results, in order.
        **options: Passed in every call.
    """

    def __init__(self, model: nn.Module, argument: str, fields: tuple[str, ...], **options: Any) -> None:
        super().__init__()
        self.model = model
        self.argument = argument
        self.fields = fields
        self.options = options

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        result = self.model(**{self.argument: x}, **self.options)
        tensors = tuple(getattr(result, field) for field in self.fields)
        return tensors[0] if len(tensors) == 1 else tensors


class LoraLinear(nn.Module):
    """A linear layer and its unmerged low-rank adapter: base(x) + up(down(x)) * scale (Hu et al. 2021).

    Args:
        base: The layer that is adapted.
        rank: Width of the adapter.
        scale: Factor of the adapter, alpha / rank.
    """

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.normal_(self.up.weight, std=0.02)
        self.dropout = nn.Dropout(0.1)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(self.dropout(x))) * self.scale


def _bert() -> transformers.BertModel:
    return transformers.BertModel(transformers.BertConfig(initializer_range=_INITIALISER_RANGE))


def bert_base() -> nn.Module:
    """BERT-base, 12 layers: ids [B, T] to hidden states [B, T, 768] and the pooled first one [B, 768]."""
    return PlainTensors(_bert(), "input_ids", ("last_hidden_state", "pooler_output"))


def bert_lora(rank: int = 16) -> nn.Module:
    """BERT-base with an unmerged adapter on each of the four projections of every attention."""
    bert = _bert()
    for layer in bert.encoder.layer:
        attention = layer.attention
        for owner, name in (
            (attention.self, "query"),
            (attention.self, "key"),
            (attention.self, "value"),
            (attention.output, "dense"),
        ):
            setattr(owner, name, LoraLinear(getattr(owner, name), rank, scale=2.0))
    return PlainTensors(bert, "input_ids", ("last_hidden_state", "pooler_output"))


def gpt2() -> nn.Module:
    """GPT-2, 12 layers: ids [B, T] to the logits of all positions [B, T, 50257]."""
    config = transformers.GPT2Config(initializer_range=_INITIALISER_RANGE)
    return PlainTensors(transformers.GPT2LMHeadModel(config), "input_ids", ("logits",), use_cache=False)


def llama_gqa() -> nn.Module:
    """A Llama of 4 layers, 16 heads over 4 key-value heads, gated MLP: ids [B, T] to logits [B, T, 32000]."""
    config = transformers.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=16,
        num_key_value_heads=4, vocab_size=32000, max_position_embeddings=2048,
        initializer_range=_INITIALISER_RANGE,
    )  # fmt: skip
    return PlainTensors(transformers.LlamaForCausalLM(config), "input_ids", ("logits",), use_cache=False)


def vit_s16() -> nn.Module:
    """ViT-S/16 (Touvron et al. 2021): images [B, 3, 224, 224] to logits [B, 1000]."""
    config = transformers.ViTConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536,
        initializer_range=_INITIALISER_RANGE,
    )  # fmt: skip
    config.num_labels = 1000
    return PlainTensors(transformers.ViTForImageClassification(config), "pixel_values", ("logits",))


def token_ids(vocabulary: int, batch: int, length: int) -> Tensor:
    """Random token ids, int64 [B, T]."""
    return torch.randint(vocabulary, (batch, length))
