"""Greedy generation with a static cache, in the process of a contestant; see `baselines.calls`.

Every step has the same shapes, and a batch of one: there is little to compute, so overhead around operators
shows.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

#: Sizes of Llama-like models: width, layers, heads, key-value heads, vocabulary.
MODELS: dict[str, tuple[int, int, int, int, int]] = {
    "llama_2m": (128, 4, 4, 2, 1000),
    "llama_30m": (512, 8, 8, 4, 8000),
    "llama_110m": (768, 12, 12, 4, 16000),
}
#: Ways of calling the model; the first is the baseline of every ratio.
WAYS: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "inductor": {},
    "torchrlopt": {"backend": "rlopt"},
    "torchrlopt_frozen": {"backend": "rlopt", "options": {"weights": "frozen"}},
}
_PROMPT = 16


def build(name: str, dtype: str) -> Any:
    """The model, with random weights."""
    width, layers, heads, key_heads, words = MODELS[name]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=512,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval().to(getattr(torch, dtype))
    # `generate` may compile by itself; here the way decides what compiles.
    model.generation_config.disable_compile = True
    return model


class _Clock:
    """Streamer that records when `generate` delivers tokens, the prompt first."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def put(self, tokens: torch.Tensor) -> None:
        self.seconds.append(time.perf_counter())

    def end(self) -> None:
        """Called after the last token."""


class Generation:
    """One of `MODELS` that generates a number of tokens in one of `WAYS`."""

    def __init__(self, folder: str, model: str, way: str, dtype: str, threads: int, tokens: int) -> None:
        torch.set_num_threads(threads)
        self._model, self._tokens = build(model, dtype), tokens
        how = WAYS[way]
        if how is not None:
            self._model.forward = torch.compile(self._model.forward, **how)

    def prepare(self) -> dict[str, Any]:
        """Generate twice; returns the tokens, and the seconds of the first generation."""
        start = time.perf_counter()
        tokens, _ = self._generated()
        first_s = time.perf_counter() - start
        self._generated()
        return {"tokens": tokens, "first_s": first_s}

    def time(self) -> float:
        """Milliseconds per token of a generation, without the first token, at which the clock starts."""
        return self._generated()[1]

    @torch.inference_mode()
    def _generated(self) -> tuple[list[int], float]:
        clock, prompt = _Clock(), torch.arange(_PROMPT).reshape(1, -1) * 7 % 1000
        found = self._model.generate(
            prompt, max_new_tokens=self._tokens, do_sample=False, cache_implementation="static",
            cache_config={"max_cache_len": 256}, streamer=clock,
        )  # fmt: skip
        first, last = clock.seconds[1], clock.seconds[-1]
        tokens = [int(token) for token in found[0, prompt.shape[1] :]]
        return tokens, (last - first) / (self._tokens - 1) * 1e3
