"""Text models: encoders, decoders, and encoder-decoders; two layers, 32 channels."""

from __future__ import annotations

from functools import partial

from baselines.collection.architecture import Table, of_transformers, plain, prompt, text, to_text

_WORDS = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
_SMALL = _WORDS | _SIZES
_GQA = _SMALL | {"num_key_value_heads": 2}
_GPT = _WORDS | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_DISENTANGLED = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
_SEQ2SEQ = _WORDS | {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
_T5 = _WORDS | {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}

_encoder = partial(of_transformers, "encoder")
_decoder = partial(of_transformers, "decoder")
_both = partial(of_transformers, "encoder-decoder")
_DYNAMIC = ("dynamic",)
_CACHES = ("dynamic", "static")

ENCODERS: Table = {
    "bert": _encoder("BertModel", "BertConfig", text, **_SMALL),
    "bert_tagger": _encoder("BertForTokenClassification", "BertConfig", text, **_SMALL),
    "roberta": _encoder(
        "RobertaForSequenceClassification",
        "RobertaConfig",
        text,
        **_SMALL | {"pad_token_id": 1, "bos_token_id": 0},
    ),
    "distilbert": _encoder(
        "DistilBertModel",
        "DistilBertConfig",
        text,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=64,
        vocab_size=99,
    ),
    "albert": _encoder("AlbertModel", "AlbertConfig", text, embedding_size=16, **_SMALL),
    "electra": _encoder("ElectraModel", "ElectraConfig", text, embedding_size=16, **_SMALL),
    "deberta": _encoder("DebertaModel", "DebertaConfig", text, **_SMALL, **_DISENTANGLED),
    "deberta_v2": _encoder(
        "DebertaV2Model",
        "DebertaV2Config",
        text,
        position_buckets=8,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        **_SMALL,
        **_DISENTANGLED,
    ),
    "mpnet": _encoder("MPNetModel", "MPNetConfig", text, **_SMALL),
    "modernbert": _encoder(
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        text,
        local_attention=4,
        cls_token_id=1,
        sep_token_id=2,
        layer_types=["full_attention", "sliding_attention"],
        **_SMALL,
    ),
    "squeezebert": _encoder("SqueezeBertModel", "SqueezeBertConfig", text, embedding_size=32, **_SMALL),
    "fnet": _encoder("FNetModel", "FNetConfig", plain, **_SMALL),
    "funnel": _encoder(
        "FunnelModel",
        "FunnelConfig",
        text,
        d_model=32,
        n_head=4,
        d_head=8,
        d_inner=64,
        block_sizes=[1, 1],
        num_decoder_layers=1,
        vocab_size=99,
    ),
    "mobilebert": _encoder(
        "MobileBertModel",
        "MobileBertConfig",
        text,
        embedding_size=16,
        intra_bottleneck_size=16,
        num_feedforward_networks=2,
        **_SMALL,
    ),
    "convbert": _encoder("ConvBertModel", "ConvBertConfig", text, embedding_size=16, **_SMALL),
    "roformer": _encoder("RoFormerModel", "RoFormerConfig", text, embedding_size=16, **_SMALL),
    "nystromformer": _encoder(
        "NystromformerModel",
        "NystromformerConfig",
        plain,
        num_landmarks=4,
        segment_means_seq_len=12,
        conv_kernel_size=3,
        **_SMALL,
    ),
    "longformer": _encoder("LongformerModel", "LongformerConfig", text, attention_window=4, **_SMALL),
    "xlnet": _encoder(
        "XLNetModel", "XLNetConfig", text, vocab_size=99, d_model=32, n_layer=2, n_head=4, d_inner=64
    ),
}

DECODERS: Table = {
    "gpt2": _decoder("GPT2LMHeadModel", "GPT2Config", prompt, _CACHES, **_GPT),
    "gpt_neo": _decoder(
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        prompt,
        _DYNAMIC,
        num_layers=2,
        num_heads=4,
        window_size=4,
        attention_types=[[["global", "local"], 1]],
        hidden_size=32,
        max_position_embeddings=64,
        **_WORDS,
    ),
    "gptj": _decoder("GPTJForCausalLM", "GPTJConfig", prompt, rotary_dim=4, **_GPT),
    "gpt_neox": _decoder("GPTNeoXForCausalLM", "GPTNeoXConfig", prompt, _CACHES, **_SMALL),
    "gpt_bigcode": _decoder("GPTBigCodeForCausalLM", "GPTBigCodeConfig", prompt, _DYNAMIC, **_GPT),
    "codegen": _decoder("CodeGenForCausalLM", "CodeGenConfig", prompt, rotary_dim=4, n_ctx=64, **_GPT),
    "opt": _decoder(
        "OPTForCausalLM", "OPTConfig", prompt, _CACHES, ffn_dim=64, word_embed_proj_dim=32, **_SMALL
    ),
    "bloom": _decoder(
        "BloomForCausalLM", "BloomConfig", prompt, _CACHES, hidden_size=32, n_layer=2, n_head=4, **_WORDS
    ),
    "mpt": _decoder(
        "MptForCausalLM",
        "MptConfig",
        prompt,
        _DYNAMIC,
        d_model=32,
        n_heads=4,
        n_layers=2,
        max_seq_len=64,
        **_WORDS,
    ),
    "falcon": _decoder("FalconForCausalLM", "FalconConfig", prompt, _CACHES, **_SMALL),
    "falcon_alibi": _decoder("FalconForCausalLM", "FalconConfig", prompt, alibi=True, **_SMALL),
    "llama": _decoder("LlamaForCausalLM", "LlamaConfig", prompt, _CACHES, **_GQA),
    "mistral": _decoder("MistralForCausalLM", "MistralConfig", prompt, _CACHES, sliding_window=6, **_GQA),
    "qwen2": _decoder("Qwen2ForCausalLM", "Qwen2Config", prompt, _CACHES, **_GQA),
    "qwen3": _decoder("Qwen3ForCausalLM", "Qwen3Config", prompt, _CACHES, head_dim=8, **_GQA),
    "phi": _decoder("PhiForCausalLM", "PhiConfig", prompt, _CACHES, qk_layernorm=True, **_SMALL),
    "phi3": _decoder("Phi3ForCausalLM", "Phi3Config", prompt, _DYNAMIC, **_GQA),
    "stablelm": _decoder("StableLmForCausalLM", "StableLmConfig", prompt, use_qkv_bias=True, **_GQA),
    "starcoder2": _decoder("Starcoder2ForCausalLM", "Starcoder2Config", prompt, **_GQA),
    "granite": _decoder(
        "GraniteForCausalLM", "GraniteConfig", prompt, attention_multiplier=0.3, logits_scaling=2.0, **_GQA
    ),
    "cohere": _decoder("CohereForCausalLM", "CohereConfig", prompt, use_qk_norm=True, **_GQA),
    "olmo2": _decoder("Olmo2ForCausalLM", "Olmo2Config", prompt, **_GQA),
    "gemma": _decoder("GemmaForCausalLM", "GemmaConfig", prompt, _DYNAMIC, head_dim=8, **_GQA),
    "gemma2": _decoder(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        prompt,
        _CACHES,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=6,
        **_GQA,
    ),
    "gemma3": _decoder(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        prompt,
        _CACHES,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"],
        **_GQA,
    ),
    "mixtral": _decoder("MixtralForCausalLM", "MixtralConfig", prompt, _DYNAMIC, num_local_experts=4, **_GQA),
    "qwen3_moe": _decoder(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        prompt,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        **_GQA,
    ),
    "gpt_oss": _decoder(
        "GptOssForCausalLM",
        "GptOssConfig",
        prompt,
        _DYNAMIC,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=6,
        **_GQA,
    ),
    "deepseek_v3": _decoder(
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        prompt,
        _DYNAMIC,
        kv_lora_rank=8,
        q_lora_rank=16,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=8,
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        moe_intermediate_size=16,
        num_mtp_layers=0,
        num_key_value_heads=4,
        **_SMALL,
    ),
    "lfm2": _decoder(
        "Lfm2ForCausalLM",
        "Lfm2Config",
        prompt,
        _DYNAMIC,
        layer_types=["conv", "full_attention"],
        block_multiple_of=8,
        **_GQA,
    ),
    "mamba": _decoder(
        "MambaForCausalLM",
        "MambaConfig",
        prompt,
        _DYNAMIC,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=8,
        **_WORDS,
    ),
    "mamba2": _decoder(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        prompt,
        hidden_size=32,
        num_hidden_layers=2,
        num_heads=4,
        head_dim=16,
        n_groups=2,
        state_size=8,
        chunk_size=4,
        **_WORDS,
    ),
    "recurrent_gemma": _decoder(
        "RecurrentGemmaForCausalLM",
        "RecurrentGemmaConfig",
        prompt,
        attention_window_size=6,
        lru_width=32,
        **_SMALL | {"num_hidden_layers": 3},
    ),
    "rwkv": _decoder(
        "RwkvForCausalLM",
        "RwkvConfig",
        plain,
        _DYNAMIC,
        hidden_size=32,
        num_hidden_layers=2,
        context_length=64,
        **_WORDS,
    ),
}

BOTH: Table = {
    "t5": _both("T5ForConditionalGeneration", "T5Config", to_text, _CACHES, **_T5),
    "t5_gated": _both(
        "T5ForConditionalGeneration", "T5Config", to_text, feed_forward_proj="gated-gelu", **_T5
    ),
    "longt5": _both("LongT5ForConditionalGeneration", "LongT5Config", to_text, local_radius=3, **_T5),
    "switch_transformers": _both(
        "SwitchTransformersForConditionalGeneration",
        "SwitchTransformersConfig",
        to_text,
        num_experts=4,
        num_decoder_layers=2,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        **_T5,
    ),
    "bart": _both("BartForConditionalGeneration", "BartConfig", to_text, _CACHES, **_SEQ2SEQ),
    "mbart": _both("MBartForConditionalGeneration", "MBartConfig", to_text, **_SEQ2SEQ),
    "marian": _both("MarianMTModel", "MarianConfig", to_text, _DYNAMIC, **_SEQ2SEQ),
    "pegasus": _both("PegasusForConditionalGeneration", "PegasusConfig", to_text, **_SEQ2SEQ),
    "m2m_100": _both("M2M100ForConditionalGeneration", "M2M100Config", to_text, _DYNAMIC, **_SEQ2SEQ),
}
