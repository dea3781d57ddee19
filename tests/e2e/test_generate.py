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


def sliding() -> Any:
    """The cache of each layer counts its tokens in a Python number, and the code depends on it."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 64}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.MistralConfig(**sizes, **layers, **SIZES, sliding_window=8)
    return transformers.MistralForCausalLM(config)


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


@pytest.mark.nightly
def test_batches_of_any_size_share_two_more_graphs() -> None:
    torch.manual_seed(0)
    model = llama().eval()
    fast: Any = optimise(model, **QUICK)
    for prompt in prompts((2, 9), (3, 14), (2, 4)):
        assert generated(fast, prompt, "dynamic") == generated(model, prompt, "dynamic")
    assert len(fast.reports) == 2
    for prompt in prompts((1, 6), (1, 17)):
        assert generated(fast, prompt, "dynamic") == generated(model, prompt, "dynamic")
    assert len(fast.reports) == 4, "a single text has graphs of its own"


@pytest.mark.nightly
def test_code_that_depends_on_lengths_is_compiled_a_few_times() -> None:
    torch.manual_seed(0)
    model = sliding().eval()
    fast: Any = optimise(model, **QUICK)
    for prompt in prompts((1, 7), (1, 12), (1, 3), (2, 9), (1, 25), (3, 4)):
        assert generated(fast, prompt, "dynamic") == generated(model, prompt, "dynamic")
    assert len(fast.reports) == torch._dynamo.config.recompile_limit
    assert any("those of other kinds run the original" in note for note in fast.report.notes)
