"""The transformers of the suite, with random weights: BERT, BERT with LoRA adapters, GPT-2, a Llama, a ViT.

Weights are drawn twice as wide as at the start of training, so that attention is not close to uniform.
"""

from __future__ import annotations

from torch import Tensor, nn

from baselines.zoo.entries import NO_CACHE, classifier, text

_WIDE = {"initializer_range": 0.04}


class LoraLinear(nn.Module):
    """A linear layer and its unmerged low-rank adapter: base(x) + up(down(x)) * scale (Hu et al. 2021)."""

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


#: BERT-base, 12 layers: ids [B, T] to hidden states [B, T, 768] and the pooled first one [B, 768].
bert_base = text("BertModel", ("last_hidden_state", "pooler_output"), **_WIDE)
#: GPT-2, 12 layers: ids [B, T] to the logits of all positions [B, T, 50257].
gpt2 = text("GPT2LMHeadModel", "logits", NO_CACHE, **_WIDE)
#: A Llama of 4 layers, 16 heads over 4 key-value heads, gated MLP: ids [B, T] to logits [B, T, 32000].
llama_gqa = text(
    "LlamaForCausalLM", "logits", NO_CACHE, hidden_size=1024, intermediate_size=2816,
    num_hidden_layers=4, num_attention_heads=16, num_key_value_heads=4, vocab_size=32000,
    max_position_embeddings=2048, **_WIDE,
)  # fmt: skip
#: ViT-S/16 (Touvron et al. 2021): images [B, 3, 224, 224] to logits [B, 1000].
vit_s16 = classifier(
    "ViTForImageClassification", hidden_size=384, num_hidden_layers=12, num_attention_heads=6,
    intermediate_size=1536, **_WIDE,
)  # fmt: skip


def bert_lora(rank: int = 16) -> nn.Module:
    """BERT-base with an unmerged adapter on each of the four projections of every attention."""
    made = bert_base()
    for layer in made.model.encoder.layer:
        attention = layer.attention
        for owner, name in (
            (attention.self, "query"),
            (attention.self, "key"),
            (attention.self, "value"),
            (attention.output, "dense"),
        ):
            setattr(owner, name, LoraLinear(getattr(owner, name), rank, scale=2.0))
    return made
