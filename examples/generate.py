"""Text generation with a language model, through `generate` of the transformers package.

    python examples/generate.py

The model is small and its weights are random, so the text is meaningless; it is the same with and without
torchrlopt.
"""

import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import torchrlopt


def build() -> LlamaForCausalLM:
    """A Llama with about two million parameters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def seconds_and_tokens(model, prompt: torch.Tensor) -> tuple[float, list[int]]:
    """Greedy decoding with a static cache, so that every step has the same shapes."""
    start = time.perf_counter()
    tokens = model.generate(prompt, max_new_tokens=32, do_sample=False, cache_implementation="static")
    return time.perf_counter() - start, tokens[0].tolist()


if __name__ == "__main__":
    model = build()
    # `generate` compiles static caches with inductor by itself; here we choose the backend.
    model.generation_config.disable_compile = True
    prompt = torch.randint(0, 1000, (1, 16))
    with torch.inference_mode():
        fast = torchrlopt.optimise(model)
        compiling_s, _ = seconds_and_tokens(fast, prompt)
        fast_s, tokens = seconds_and_tokens(fast, prompt)
        seconds_and_tokens(model, prompt)
        original_s, expected = seconds_and_tokens(model, prompt)
    assert tokens == expected, "greedy decoding gives the same tokens"
    print(fast.report)
    print(f"first call {compiling_s:.1f} s; 32 tokens: original {original_s:.3f} s, optimised {fast_s:.3f} s")
