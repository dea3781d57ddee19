"""Text models: encoders, decoders, and encoder-decoders; two layers, 32 channels."""

from __future__ import annotations

from functools import partial

from baselines.collection.architecture import (
    SEQ2SEQ,
    TEXT,
    WORDS,
    Table,
    of_transformers,
    plain,
    prompt,
    text,
    to_text,
)

_GQA = TEXT | {"num_key_value_heads": 2}
_GPT = WORDS | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_SEQ2SEQ = SEQ2SEQ | {"max_position_embeddings": 64, "forced_eos_token_id": None}
_DISENTANGLED = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
_T5 = WORDS | {
    "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0,
}  # fmt: skip

_encoder = partial(of_transformers, "encoder")
_decoder = partial(of_transformers, "decoder")
_both = partial(of_transformers, "encoder-decoder")
_DYNAMIC = ("dynamic",)
_CACHES = ("dynamic", "static")

ENCODERS: Table = {
    "bert": _encoder("BertModel", text, **TEXT),
    "bert_tagger": _encoder("BertForTokenClassification", text, **TEXT),
    "roberta": _encoder(
        "RobertaForSequenceClassification", text, **TEXT | {"pad_token_id": 1, "bos_token_id": 0}
    ),
    "distilbert": _encoder(
        "DistilBertModel", text, dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=99
    ),
    "albert": _encoder("AlbertModel", text, embedding_size=16, **TEXT),
    "electra": _encoder("ElectraModel", text, embedding_size=16, **TEXT),
    "deberta": _encoder("DebertaModel", text, **TEXT, **_DISENTANGLED),
    "deberta_v2": _encoder(
        "DebertaV2Model", text, position_buckets=8, norm_rel_ebd="layer_norm", share_att_key=True, **TEXT,
        **_DISENTANGLED
    ),
    "mpnet": _encoder("MPNetModel", text, **TEXT),
    "modernbert": _encoder(
        "ModernBertForMaskedLM", text, local_attention=4, cls_token_id=1, sep_token_id=2,
        layer_types=["full_attention", "sliding_attention"], **TEXT
    ),
    "squeezebert": _encoder("SqueezeBertModel", text, embedding_size=32, **TEXT),
    "fnet": _encoder("FNetModel", plain, **TEXT),
    "funnel": _encoder(
        "FunnelModel", text, d_model=32, n_head=4, d_head=8, d_inner=64, block_sizes=[1, 1],
        num_decoder_layers=1, vocab_size=99
    ),
    "mobilebert": _encoder(
        "MobileBertModel", text, embedding_size=16, intra_bottleneck_size=16, num_feedforward_networks=2,
        **TEXT
    ),
    "convbert": _encoder("ConvBertModel", text, embedding_size=16, **TEXT),
    "roformer": _encoder("RoFormerModel", text, embedding_size=16, **TEXT),
    "nystromformer": _encoder(
        "NystromformerModel", plain, num_landmarks=4, segment_means_seq_len=12, conv_kernel_size=3, **TEXT
    ),
    "longformer": _encoder("LongformerModel", text, attention_window=4, **TEXT),
    "xlnet": _encoder("XLNetModel", text, vocab_size=99, d_model=32, n_layer=2, n_head=4, d_inner=64),
}  # fmt: skip

DECODERS: Table = {
    "gpt2": _decoder("GPT2LMHeadModel", prompt, _CACHES, **_GPT),
    "gpt_neo": _decoder(
        "GPTNeoForCausalLM", prompt, _DYNAMIC, num_layers=2, num_heads=4, window_size=4,
        attention_types=[[["global", "local"], 1]], hidden_size=32, max_position_embeddings=64, **WORDS
    ),
    "gptj": _decoder("GPTJForCausalLM", prompt, rotary_dim=4, **_GPT),
    "gpt_neox": _decoder("GPTNeoXForCausalLM", prompt, _CACHES, **TEXT),
    "gpt_bigcode": _decoder("GPTBigCodeForCausalLM", prompt, _DYNAMIC, **_GPT),
    "codegen": _decoder("CodeGenForCausalLM", prompt, rotary_dim=4, n_ctx=64, **_GPT),
    "opt": _decoder("OPTForCausalLM", prompt, _CACHES, ffn_dim=64, word_embed_proj_dim=32, **TEXT),
    "bloom": _decoder("BloomForCausalLM", prompt, _CACHES, hidden_size=32, n_layer=2, n_head=4, **WORDS),
    "mpt": _decoder(
        "MptForCausalLM", prompt, _DYNAMIC, d_model=32, n_heads=4, n_layers=2, max_seq_len=64, **WORDS
    ),
    "falcon": _decoder("FalconForCausalLM", prompt, _CACHES, **TEXT),
    "falcon_alibi": _decoder("FalconForCausalLM", prompt, alibi=True, **TEXT),
    "llama": _decoder("LlamaForCausalLM", prompt, _CACHES, **_GQA),
    "mistral": _decoder("MistralForCausalLM", prompt, _CACHES, sliding_window=6, **_GQA),
    "qwen2": _decoder("Qwen2ForCausalLM", prompt, _CACHES, **_GQA),
    "qwen3": _decoder("Qwen3ForCausalLM", prompt, _CACHES, head_dim=8, **_GQA),
    "phi": _decoder("PhiForCausalLM", prompt, _CACHES, qk_layernorm=True, **TEXT),
    "phi3": _decoder("Phi3ForCausalLM", prompt, _DYNAMIC, **_GQA),
    "stablelm": _decoder("StableLmForCausalLM", prompt, use_qkv_bias=True, **_GQA),
    "starcoder2": _decoder("Starcoder2ForCausalLM", prompt, **_GQA),
    "granite": _decoder("GraniteForCausalLM", prompt, attention_multiplier=0.3, logits_scaling=2.0, **_GQA),
    "cohere": _decoder("CohereForCausalLM", prompt, use_qk_norm=True, **_GQA),
    "olmo2": _decoder("Olmo2ForCausalLM", prompt, **_GQA),
    "gemma": _decoder("GemmaForCausalLM", prompt, _DYNAMIC, head_dim=8, **_GQA),
    "gemma2": _decoder(
        "Gemma2ForCausalLM", prompt, _CACHES, head_dim=8, query_pre_attn_scalar=8, sliding_window=6, **_GQA
    ),
    "gemma3": _decoder(
        "Gemma3ForCausalLM", prompt, _CACHES, head_dim=8, query_pre_attn_scalar=8, sliding_window=6,
        layer_types=["sliding_attention", "full_attention"], **_GQA
    ),
    "mixtral": _decoder("MixtralForCausalLM", prompt, _DYNAMIC, num_local_experts=4, **_GQA),
    "qwen3_moe": _decoder(
        "Qwen3MoeForCausalLM", prompt, head_dim=8, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16, **_GQA
    ),
    "gpt_oss": _decoder(
        "GptOssForCausalLM", prompt, _DYNAMIC, head_dim=8, num_local_experts=4, num_experts_per_tok=2,
        sliding_window=6, **_GQA
    ),
    "deepseek_v3": _decoder(
        "DeepseekV3ForCausalLM", prompt, _DYNAMIC, kv_lora_rank=8, q_lora_rank=16, qk_rope_head_dim=4,
        qk_nope_head_dim=8, v_head_dim=8, n_routed_experts=8, n_group=2, topk_group=1, num_experts_per_tok=2,
        first_k_dense_replace=1, moe_intermediate_size=16, num_mtp_layers=0, num_key_value_heads=4, **TEXT
    ),
    "lfm2": _decoder(
        "Lfm2ForCausalLM", prompt, _DYNAMIC, layer_types=["conv", "full_attention"], block_multiple_of=8,
        **_GQA
    ),
    "mamba": _decoder(
        "MambaForCausalLM", prompt, _DYNAMIC, hidden_size=32, num_hidden_layers=2, state_size=8, **WORDS
    ),
    "mamba2": _decoder(
        "Mamba2ForCausalLM", prompt, hidden_size=32, num_hidden_layers=2, num_heads=4, head_dim=16,
        n_groups=2, state_size=8, chunk_size=4, **WORDS
    ),
    "recurrent_gemma": _decoder(
        "RecurrentGemmaForCausalLM", prompt, attention_window_size=6, lru_width=32, **TEXT |
        {"num_hidden_layers": 3}
    ),
    "rwkv": _decoder(
        "RwkvForCausalLM", plain, _DYNAMIC, hidden_size=32, num_hidden_layers=2, context_length=64, **WORDS
    ),
}  # fmt: skip

BOTH: Table = {
    "t5": _both("T5ForConditionalGeneration", to_text, _CACHES, **_T5),
    "t5_gated": _both("T5ForConditionalGeneration", to_text, feed_forward_proj="gated-gelu", **_T5),
    "longt5": _both("LongT5ForConditionalGeneration", to_text, local_radius=3, **_T5),
    "switch_transformers": _both(
        "SwitchTransformersForConditionalGeneration", to_text, num_experts=4, num_decoder_layers=2,
        num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, **_T5
    ),
    "bart": _both("BartForConditionalGeneration", to_text, _CACHES, **_SEQ2SEQ),
    "mbart": _both("MBartForConditionalGeneration", to_text, **_SEQ2SEQ),
    "marian": _both("MarianMTModel", to_text, _DYNAMIC, **_SEQ2SEQ),
    "pegasus": _both("PegasusForConditionalGeneration", to_text, **_SEQ2SEQ),
    "m2m_100": _both("M2M100ForConditionalGeneration", to_text, _DYNAMIC, **_SEQ2SEQ),
}  # fmt: skip
