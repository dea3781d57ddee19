"""The operators of PyTorch's transformer fast path, decomposed: the same numbers, and rewritten graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from tests.crosses import nightly_but
from torchrlopt.capture.fast_paths import PARTS

WIDTH, HEADS, BATCH, LENGTH = 16, 4, 3, 5
MASKS = {
    None: lambda: None,
    0: lambda: torch.ones(LENGTH, LENGTH).triu(1).bool(),
    1: lambda: torch.arange(LENGTH) >= torch.tensor([[5], [3], [1]]),
    2: lambda: torch.rand(BATCH, HEADS, LENGTH, LENGTH) > 0.7,
}


def weights_of(layer: nn.TransformerEncoderLayer) -> tuple[torch.Tensor, ...]:
    """Those of the attention, in the order of the operator's arguments."""
    attention = layer.self_attn
    return (
        attention.in_proj_weight,
        attention.in_proj_bias,
        attention.out_proj.weight,
        attention.out_proj.bias,
    )


def random_layer(**options: Any) -> nn.TransformerEncoderLayer:
    """In eval mode, with norms and biases that are not those of a new layer."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True, **options).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(-0.5, 1.5)
    return layer


@pytest.mark.parametrize("mask_type", MASKS)
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("is_float", [False, True])
def test_attention_is_the_kernel(
    mask_type: int | None, need_weights: bool, average: bool, is_float: bool
) -> None:
    operator = torch.ops.aten._native_multi_head_attention.default
    mask, x = MASKS[mask_type](), torch.randn(BATCH, LENGTH, WIDTH)
    if mask is not None and is_float:
        mask = torch.zeros_like(mask, dtype=torch.float32).masked_fill(mask, float("-inf"))
    with torch.no_grad():
        arguments = (x, x, x, WIDTH, HEADS, *weights_of(random_layer()), mask, need_weights, average)
        expected = operator(*arguments, mask_type)
        found = PARTS[operator](*arguments, mask_type)
    torch.testing.assert_close(found[0], expected[0], equal_nan=True)
    if need_weights:
        torch.testing.assert_close(found[1], expected[1], equal_nan=True)
    else:
        assert found[1] is expected[1] is None


def test_attention_of_three_inputs_is_the_kernel() -> None:
    operator = torch.ops.aten._native_multi_head_attention.default
    inputs = [torch.randn(BATCH, LENGTH, WIDTH) for _ in range(3)]
    with torch.no_grad():
        arguments = (*inputs, WIDTH, HEADS, *weights_of(random_layer()), None, True, False)
        for found, expected in zip(PARTS[operator](*arguments), operator(*arguments), strict=True):
            torch.testing.assert_close(found, expected)


def test_rows_of_which_everything_is_left_out_are_nan_in_both() -> None:
    layer, x = random_layer(), torch.randn(BATCH, LENGTH, WIDTH)
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[1] = True
    fast = torchrlopt.optimise(layer, on_error="raise", measure=False)
    with torch.no_grad():
        found, expected = fast(x, src_key_padding_mask=padding), layer(x, src_key_padding_mask=padding)
    assert expected[1].isnan().all()
    assert not expected[0].isnan().any()
    torch.testing.assert_close(found, expected, equal_nan=True)


def causal() -> torch.Tensor:
    return torch.ones(LENGTH, LENGTH).triu(1).bool()


MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, Callable[[], Any]]]] = {
    "relu": (random_layer, {}),
    "gelu, norm first": (lambda: random_layer(norm_first=True, activation="gelu"), {}),
    "causal": (random_layer, {"src_mask": causal}),
    "padding": (random_layer, {"src_key_padding_mask": MASKS[1]}),
    "causal, padding": (random_layer, {"src_mask": causal, "src_key_padding_mask": MASKS[1]}),
    "encoder": (
        # Under torch.compile, PyTorch does not set padded places to 0, as it does with nested tensors.
        lambda: nn.TransformerEncoder(random_layer(), 2, enable_nested_tensor=False).eval(),
        {"src_key_padding_mask": MASKS[1]},
    ),
}


@pytest.mark.parametrize("executor", nightly_but(["eager"], ["eager", "onnxruntime"]))
@pytest.mark.parametrize("name", MODELS)
def test_fast_path_is_rewritten(name: str, executor: str) -> None:
    make, options = MODELS[name]
    model, x = make(), torch.randn(BATCH, LENGTH, WIDTH)
    given = {key: value() for key, value in options.items()}
    fast = torchrlopt.optimise(model, on_error="raise", measure=False, executor=executor)
    with torch.no_grad():
        found, expected = fast(x, **given), model(x, **given)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert {report.kept for report in torchrlopt.reports(fast)} == {"rewritten"}


@pytest.mark.parametrize("shape", [(0, LENGTH, WIDTH), (BATCH, 0, WIDTH)])
def test_nothing_is_taken_apart_too(shape: tuple[int, ...]) -> None:
    layer, x = random_layer(), torch.randn(shape)
    fast = torchrlopt.optimise(layer, on_error="raise", measure=False)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), layer(x))


def test_saved_fast_path(tmp_path: Any) -> None:
    layer, x = random_layer(), torch.randn(BATCH, LENGTH, WIDTH)
    fast = torchrlopt.optimise(layer, x, on_error="raise", measure=False)
    torchrlopt.save(fast, tmp_path / "layer.pt2", (x,))
    with torch.no_grad():
        torch.testing.assert_close(torchrlopt.load(tmp_path / "layer.pt2")(x), layer(x), atol=1e-5, rtol=1e-4)
