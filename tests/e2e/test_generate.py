"""`generate` of transformers' models: prompts of any length share their graphs, and tokens stay the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.crosses import nightly_but
from tests.e2e.models import QUICK
from torchrlopt import optimise

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}


def gpt2() -> Any:
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, n_positions=64, **SIZES)
    return transformers.GPT2LMHeadModel(config)


def llama() -> Any:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        "num_hidden_layers": 1,
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads, **SIZES))


MODELS = {"gpt2": gpt2, "llama": llama}
CASES = [(model, cache) for model in MODELS for cache in ("dynamic", "static")]


NEW = 4


def generated(model: Any, prompt: torch.Tensor, cache: str) -> list[list[int]]:
    """Greedy decoding; `generate` would compile static caches itself on some devices."""
    model.generation_config.disable_compile = True
    implementation = "static" if cache == "static" else None
    tokens: list[list[int]] = model.generate(
        prompt, max_new_tokens=NEW, do_sample=False, cache_implementation=implementation
    ).tolist()
    return tokens


def prompts(*shapes: tuple[int, int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(1, 64, shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize(("made", "cache"), nightly_but([("llama", "dynamic"), ("gpt2", "static")], CASES))
def test_prompts_of_any_length_share_two_graphs(made: str, cache: str, runs: list[int]) -> None:
    torch.manual_seed(0)
    model = MODELS[made]().eval()
    fast: Any = optimise(model, **QUICK)
    for prompt in prompts((1, 7), (1, 12), (1, 3), (1, 25)):
        assert generated(fast, prompt, cache) == generated(model, prompt, cache)
    assert len(fast.reports) == 2, "one for the prompt, one for each further token"
    assert len(runs) == 4 * NEW, "one for each token"
    assert torch.compiler.config.dynamic_sources == "", "the user's own code is compiled as before"
