"""Every direct translation against PyTorch, run in ONNX Runtime; and operators that have to stay opaque."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines `quantized_decomposed`
import torch.nn.functional as F

from tests.capture.capture_calls import Capture, assert_captured_right, capture_function, tensor_outputs
from torchrlopt.capture.whole import whole_operators
from torchrlopt.executors.lowering.onnx_to_aten import lower_model
from torchrlopt.ops.to_onnx import TABLE, translation

_generator = torch.Generator().manual_seed(0)


def _r(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=_generator)


X, Y = _r(2, 3, 4), _r(2, 3, 4)
P = X.abs() + 0.1
I = torch.randint(1, 5, (2, 3, 4), generator=_generator)  # noqa: E741 - integers
B = X > 0
IMAGE = _r(2, 6, 8, 8)
Q = _r(2, 2, 5, 8)
PERMUTATION = torch.tensor([2, 0, 1])
quantised = torch.ops.quantized_decomposed

Case = tuple[Any, ...]  # a function, its inputs

ELEMENTWISE: dict[str, Case] = {
    **{f"{f.__name__}": (f, X) for f in (torch.abs, torch.neg, torch.exp, torch.sin, torch.cos, torch.tan)},
    **{f"{f.__name__}": (f, X) for f in (torch.asinh, torch.atan, torch.sinh, torch.cosh, torch.tanh)},
    **{f"{f.__name__}": (f, X) for f in (torch.sigmoid, torch.erf, torch.reciprocal, torch.sign)},
    **{f"{f.__name__}": (f, X) for f in (torch.floor, torch.ceil, torch.round, torch.isnan, torch.isinf)},
    **{f"{f.__name__}": (f, P) for f in (torch.log, torch.sqrt, torch.rsqrt)},
    **{f"int_{f.__name__}": (f, I) for f in (torch.exp, torch.sqrt, torch.neg, torch.floor, torch.sign)},
    **{f"{f.__name__}": (f, X) for f in (F.hardswish, F.hardsigmoid, F.relu6, F.gelu, F.silu, F.elu)},
    **{f"{f.__name__}": (f, X) for f in (F.leaky_relu, F.softplus, F.selu, F.celu, F.hardtanh, F.mish)},
    **{f"{f.__name__}": (f, X) for f in (F.logsigmoid, F.relu)},
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), X),
    "prelu": (F.prelu, IMAGE, _r(6)),
    "glu": (lambda x: F.glu(x, 1), IMAGE),
    "add_broadcast": (torch.add, X, _r(3, 1)),
    "add_alpha": (lambda x, y: torch.add(x, y, alpha=2), X, Y),
    "add_mixed": (torch.add, I, X),
    "add_int_float_scalar": (lambda x: x + 1.5, I),
    "add_bool": (lambda a, b: a + b, B, ~B),
    "mul_bool": (lambda a, b: a * b, B, Y > 0),
    "mul_bool_float": (torch.mul, B, X),
    "sub_scalar": (lambda x: x - 2, X),
    "rsub": (lambda x: 3 - x, X),
    "div_int": (torch.div, I, I + 1),
    "div_trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), I - 3, I),
    "div_floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), X, P),
    "remainder_int": (torch.remainder, I - 3, I),
    "pow": (torch.pow, P, X),
    "pow_scalar": (lambda x: x**3, X),
    "pow_base": (lambda x: 2.0**x, X),
    "maximum": (torch.maximum, X, Y),
    "minimum_mixed": (torch.minimum, X, I),
    **{f"{f.__name__}": (f, X, Y) for f in (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)},
    **{f"{f.__name__}_mixed": (lambda x, y, f=f: f(x, y), I, X + 2) for f in (torch.eq, torch.ne, torch.lt)},
    "gt_scalar": (lambda x: x > 1.5, I),
    **{f"{f.__name__}": (f, B, I > 2) for f in (torch.logical_and, torch.logical_or, torch.logical_xor)},
    "logical_not": (torch.logical_not, I - 2),
    **{f"{f.__name__}": (f, I, I + 3) for f in (torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor)},
    "bitwise_and_bool": (torch.bitwise_and, B, Y > 0),
    "bitwise_not": (torch.bitwise_not, I),
    "bitwise_not_bool": (torch.bitwise_not, B),
    "where": (torch.where, B, X, Y),
    "where_mixed": (torch.where, B, X, I),
    "where_scalar": (lambda b, x: torch.where(b, x, 0.0), B, X),
    "masked_fill": (lambda x, b: x.masked_fill(b, -1e9), X, B),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), X),
    "clamp_one_side": (lambda x: x.clamp(min=0.1), X),
    "clamp_int": (lambda x: x.clamp(2, 3), I),
    "addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=0.5), X, Y, P),
    "addcdiv": (torch.addcdiv, X, Y, P),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), X, Y),
    **{f"to_{d}": (lambda x, d=d: x.to(d), X * 10) for d in (torch.float64, torch.int64, torch.bool)},
    **{f"int_to_{d}": (lambda x, d=d: x.to(d), I) for d in (torch.float32, torch.int32, torch.uint8)},
}
REDUCTIONS: dict[str, Case] = {
    **{f"{f.__name__}": (f, X) for f in (torch.sum, torch.mean, torch.prod, torch.amax, torch.max)},
    **{f"{f.__name__}_1": (lambda x, f=f: f(x, dim=1), X) for f in (torch.sum, torch.mean, torch.max)},
    **{f"{f.__name__}_1": (lambda x, f=f: f(x, dim=1), X) for f in (torch.argmax, torch.var, torch.std)},
    **{
        f"{f.__name__}_keep": (lambda x, f=f: f(x, dim=-1, keepdim=True), X)
        for f in (torch.sum, torch.prod, torch.amin, torch.min, torch.argmin, torch.logsumexp, torch.norm)
    },
    "sum_int32": (lambda x: x.sum(0), I.int()),
    "sum_bool": (torch.sum, B),
    "sum_of_a_scalar": (torch.sum, torch.tensor(3.0)),
    "argmax_all": (torch.argmax, X),
    "var_uncorrected": (lambda x: torch.var_mean(x, dim=(1, 2), correction=0), X),
    "var_mean_keep": (lambda x: torch.var_mean(x, dim=-1, keepdim=True), X),
    "cumsum": (lambda x: x.cumsum(1), X),
    "cumsum_bool": (lambda x: x.cumsum(1), B),
    "topk": (lambda x: x.topk(2, 1), X),
    "softmax": (lambda x: x.softmax(-1), X),
    "softmax_axis_1": (lambda x: x.softmax(1), X),
    "softmax_in_float64": (lambda x: torch.softmax(x, -1, dtype=torch.float64), X),
    "log_softmax": (lambda x: x.log_softmax(1), X),
}
LAYOUT: dict[str, Case] = {
    "view": (lambda x: x.view(6, -1), X),
    "reshape_of_a_transpose": (lambda x: x.transpose(0, 1).reshape(3, 8), X),
    "expand": (lambda x: x[:, None].expand(2, 5, 3, 4), X),
    "expand_more_dims": (lambda x: x.expand(2, 3, 4), _r(3, 1)),
    "unsqueeze": (lambda x: x.unsqueeze(-1), X),
    "squeeze": (torch.squeeze, _r(1, 3, 1)),
    "squeeze_of_no_axes": (lambda x: x.squeeze(()), _r(1, 3, 1)),
    "squeeze_of_size_3": (lambda x: x.squeeze(1), X),
    "squeeze_axis": (lambda x: x.squeeze(-1), _r(1, 3, 1)),
    "permute": (lambda x: x.permute(2, 0, -2), X),
    "t_of_a_vector": (lambda x: x.t() * 1.5, _r(3)),
    "slice": (lambda x: x[:, 1:], X),
    "slice_negative": (lambda x: x[:, -2:-1, ::2], X),
    "slice_beyond": (lambda x: x[..., 1:100], X),
    "slice_to_nothing": (lambda x: x[:, 5:2], X),
    "select": (lambda x: x[:, -1], X),
    "cat": (lambda x, y: torch.cat([x, y], -1), X, Y),
    "cat_mixed": (lambda x, y: torch.cat([x, y], 0), X, I),
    "cat_empty": (lambda x: torch.cat([torch.empty(0), x]), _r(3)),
    "stack": (lambda x, y: torch.stack([x, y], -1), X, Y),
    "split": (lambda x: x.split(3, -1), X),
    "split_sizes": (lambda x: x.split([1, 2], 1), X),
    "unbind": (lambda x: x.unbind(1), X),
    "flip": (lambda x: x.flip(0, 2), X),
    "repeat": (lambda x: x.repeat(2, 1, 1, 3), X),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1)), X),
    "pad_value": (lambda x: F.pad(x, (1, 2), value=3.0), X),
    "pad_negative": (lambda x: F.pad(x, (-1, 1)), X),
    "pad_reflect": (lambda x: F.pad(x, (1, 2, 1, 0), mode="reflect"), IMAGE),
    "pad_replicate": (lambda x: F.pad(x, (1, 2, 1, 0), mode="replicate"), IMAGE),
    "tril": (lambda x: x.tril(), X),
    "triu": (lambda x: x.triu(1), X),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), _r(1, 8, 3, 3)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), IMAGE),
    "full": (lambda x: x * torch.full((4,), 2.0), X),
    "arange": (lambda x: x + torch.arange(4), X),
}
INDEXING: dict[str, Case] = {
    "embedding": (lambda w, i: F.embedding(i, w), _r(10, 4), torch.tensor([[1, 9], [0, 2]])),
    "gather": (lambda x, i: x.gather(1, i), X, torch.zeros(2, 2, 4, dtype=torch.int64)),
    "index": (lambda x, i: x[:, i], X, PERMUTATION),
    "index_negative": (lambda x, i: x[i], X, torch.tensor([-1, 0])),
    "index_two": (lambda x, i, j: x[i, j], X, torch.tensor([0, 1]), torch.tensor([[2], [1]])),
    "index_last_two": (lambda x, i, j: x[:, i, j], X, torch.tensor([0, 1]), torch.tensor([[2], [1]])),
    "index_with_a_gap": (lambda x, i, j: x[i, :, j], X, torch.tensor([0, 1]), torch.tensor([2, 1])),
    "index_select": (lambda x, i: x.index_select(1, i), X, PERMUTATION),
    "scatter": (lambda x, i, s: x.scatter(1, i, s), X, torch.ones(2, 1, 4, dtype=torch.int64), _r(2, 1, 4)),
    "scatter_add": (
        lambda x, i, s: x.scatter_add(1, i, s),
        X,
        torch.zeros(2, 5, 4, dtype=torch.int64),
        _r(2, 5, 4),
    ),
}
PRODUCTS: dict[str, Case] = {
    "mm": (torch.mm, _r(3, 4), _r(4, 5)),
    "mm_int": (torch.mm, I[0], I[0].t().contiguous()),
    "bmm": (torch.bmm, X, _r(2, 4, 5)),
    "addmm": (lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2), _r(5), _r(3, 4), _r(4, 5)),
    "addmm_beta_0": (
        lambda b, x, y: torch.addmm(b, x, y, beta=0),
        torch.full((5,), torch.nan),
        X[0],
        _r(4, 5),
    ),
    "baddbmm": (lambda b, x, y: torch.baddbmm(b, x, y, beta=0.5, alpha=2), _r(2, 3, 5), X, _r(2, 4, 5)),
    "linear_1d": (F.linear, _r(4), _r(5, 4), _r(5)),
    "linear_2d": (F.linear, _r(3, 4), _r(5, 4), _r(5)),
    "linear_3d": (F.linear, X, _r(5, 4), _r(5)),
    "linear_4d_without_bias": (F.linear, _r(2, 2, 3, 4), _r(5, 4)),
    "matmul_4d": (torch.matmul, _r(2, 2, 3, 4), _r(2, 2, 4, 3)),
    "mv": (torch.mv, _r(3, 4), _r(4)),
    "dot": (torch.dot, _r(4), _r(4)),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), X, _r(2, 5, 4)),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, 2, 1), IMAGE, _r(4, 6, 3, 3), _r(4)),
    "conv2d_grouped": (lambda x, w: F.conv2d(x, w, None, 1, (1, 2), 2, 3), IMAGE, _r(6, 2, 3, 3)),
    "conv2d_same": (lambda x, w: F.conv2d(x, w, padding="same"), IMAGE, _r(4, 6, 4, 4)),
    "conv2d_unbatched": (F.conv2d, IMAGE[0], _r(4, 6, 3, 3)),
    "conv1d": (F.conv1d, _r(2, 3, 9), _r(4, 3, 3)),
    "conv3d": (F.conv3d, _r(1, 2, 4, 4, 4), _r(3, 2, 3, 3, 3)),
    "conv_transpose": (lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1), IMAGE, _r(6, 4, 3, 3), _r(4)),
    "attention": (F.scaled_dot_product_attention, Q, _r(2, 2, 5, 8), Q),
    "attention_causal": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), Q),
    "attention_mask": (lambda q, m: F.scaled_dot_product_attention(q, q, q, m), Q, _r(2, 1, 5, 5)),
    "attention_scale": (lambda q: F.scaled_dot_product_attention(q, q, q, scale=0.3), Q),
    "attention_grouped": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
        _r(2, 4, 5, 8),
        Q,
    ),
    "attention_of_rank_3": (lambda q: F.scaled_dot_product_attention(q, q, q), _r(2, 5, 8)),
}
LAYERS: dict[str, Case] = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), X, _r(4), _r(4)),
    "layer_norm_plain": (lambda x: F.layer_norm(x, (3, 4)), X),
    "weight_norm": (lambda v, g: torch._weight_norm(v, g, 0), _r(6, 3, 5), _r(6, 1, 1)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w, 1e-6), X, _r(4)),
    "rms_norm_plain": (lambda x: F.rms_norm(x, (4,)), X),
    "group_norm": (lambda x, w, b: F.group_norm(x, 3, w, b), IMAGE, _r(6), _r(6)),
    "group_norm_plain": (lambda x: F.group_norm(x, 2), IMAGE),
    "batch_norm": (F.batch_norm, IMAGE, _r(6), _r(6).abs(), _r(6), _r(6)),
    "batch_norm_plain": (F.batch_norm, IMAGE, _r(6), _r(6).abs()),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    "max_pool_ceil": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), IMAGE),
    "max_pool_dilated": (lambda x: F.max_pool2d(x, 2, dilation=2), IMAGE),
    "max_pool_3d": (lambda x: F.max_pool3d(x, 2), _r(1, 2, 4, 4, 4)),
    "avg_pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGE),
    "avg_pool_uncounted": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), IMAGE),
    "avg_pool_ceil": (lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True), IMAGE),
    "avg_pool_of_all": (lambda x: F.avg_pool2d(x, 1280, ceil_mode=True), IMAGE),
    "avg_pool_1d": (lambda x: F.avg_pool1d(x, 2), _r(2, 3, 8)),
    "adaptive_to_1": (lambda x: F.adaptive_avg_pool2d(x, 1), IMAGE),
    "adaptive_even": (lambda x: F.adaptive_avg_pool2d(x, (4, 2)), IMAGE),
    "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), IMAGE, _r(2, 4, 4, 2)),
    "dropout_in_inference": (lambda x: F.dropout(x, 0.5, training=False).exp(), X),
}
QUANTISATION: dict[str, Case] = {
    "quantise": (lambda x: quantised.quantize_per_tensor(x, 0.1, 5, 0, 255, torch.uint8), X),
    "quantise_signed": (lambda x: quantised.quantize_per_tensor(x, 0.02, -9, -128, 127, torch.int8), X),
    "dequantise": (lambda q: quantised.dequantize_per_tensor(q, 0.1, 2, 0, 255, torch.uint8), I.byte()),
    "dequantise_channels": (
        lambda q, s, z: quantised.dequantize_per_channel(q, s, z, -2, -128, 127, torch.int8),
        (I - 3).to(torch.int8), _r(3).abs(), PERMUTATION,
    ),
    "dequantise_symmetric": (
        lambda q, s: quantised.dequantize_per_channel(q, s, None, 0, -128, 127, torch.int8),
        (I - 3).to(torch.int8), _r(2).abs(),
    ),
}  # fmt: skip
RESAMPLING: dict[str, Case] = {
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), IMAGE),
    "nearest_to_size": (lambda x: F.interpolate(x, size=(5, 11)), IMAGE),
    "nearest_exact": (lambda x: F.interpolate(x, scale_factor=1.7, mode="nearest-exact"), IMAGE),
    "nearest_1d": (lambda x: F.interpolate(x, scale_factor=2), _r(1, 2, 5)),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), IMAGE),
    "bilinear_to_size": (lambda x: F.interpolate(x, size=(5, 11), mode="bilinear"), IMAGE),
    "bilinear_to_size_1": (lambda x: F.interpolate(x, size=(1, 5), mode="bilinear"), IMAGE),
    "bilinear_corners": (
        lambda x: F.interpolate(x, size=(5, 11), mode="bilinear", align_corners=True),
        IMAGE,
    ),
    "bilinear_recomputed": (
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True),
        IMAGE,
    ),
    "trilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), _r(1, 2, 3, 3, 3)),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic"), IMAGE),
}
FAMILIES = ELEMENTWISE | REDUCTIONS | LAYOUT | INDEXING | PRODUCTS | LAYERS | QUANTISATION


@pytest.mark.parametrize("name", FAMILIES)
def test_translation_computes_what_pytorch_computes(name: str) -> None:
    function, *inputs = FAMILIES[name]
    record = capture_function(function, *inputs)
    assert record.captured.opaque == ()
    assert_captured_right(record)
    _assert_lowered_right(record)


def _assert_lowered_right(record: Capture) -> None:
    """Translated and converted back, it computes the same: no original call is put back here."""
    captured = record.captured
    placeholders = [node.name for node in captured.aten.graph.nodes if node.op == "placeholder"]
    given = dict(zip(placeholders, record.inputs, strict=True)) | captured.constants
    found = lower_model(captured.model)(*(given[str(value.name)] for value in captured.model.graph.inputs))
    for result, expected in zip(found, tensor_outputs(record), strict=True):
        torch.testing.assert_close(result, expected, equal_nan=True)


@pytest.mark.parametrize("name", RESAMPLING)
def test_interpolation_is_one_resize(name: str) -> None:
    function, *inputs = RESAMPLING[name]
    with whole_operators():
        record = capture_function(function, *inputs)
    assert record.op_types() == {"Resize": 1}
    assert_captured_right(record)
    if name != "nearest_exact":  # of 1.7, which float32 rounds, two elements are equally near
        _assert_lowered_right(record)


def test_whole_operators_leave_the_kernels_as_they_were() -> None:
    operation = torch.ops.aten.upsample_bilinear2d.vec
    before = dict(operation.py_kernels)
    with whole_operators(), whole_operators():
        assert operation.py_kernels != before
    assert operation.py_kernels == before


OPAQUE: dict[str, tuple[str, Case]] = {
    "dropout in training": ("aten.native_dropout.default", (lambda x: F.dropout(x, 0.5, training=True), X)),
    "indices of a pool": (
        "aten.max_pool2d_with_indices.default",
        (lambda x: F.max_pool2d(x, 2, return_indices=True), IMAGE),
    ),
    "uneven windows": ("aten._adaptive_avg_pool2d.default", (lambda x: F.adaptive_avg_pool2d(x, 3), IMAGE)),
    "counted padding beyond the edge": (
        "aten.avg_pool2d.default",
        (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), IMAGE),
    ),
    "a divisor of its own": (
        "aten.avg_pool2d.default",
        (lambda x: F.avg_pool2d(x, 3, divisor_override=2), IMAGE),
    ),
    "floor division of integers": (
        "aten.div.Tensor_mode",
        (lambda x, y: torch.div(x, y, rounding_mode="floor"), I - 3, I),
    ),
    "an exponent that bfloat16 rounds": ("aten.pow.Tensor_Scalar", (lambda x: x**0.3, P.bfloat16())),
    "remainder of floats": ("aten.remainder.Tensor", (torch.remainder, X, P)),
    "cast that wraps": ("aten._to_copy.default", (lambda x: x.to(torch.int8), X * 1000)),
    "softplus with a beta": ("aten.softplus.default", (lambda x: F.softplus(x, beta=2.0), X)),
    "integers of seven bits": (
        "quantized_decomposed.quantize_per_tensor.default",
        (lambda x: quantised.quantize_per_tensor(x, 0.1, 5, 0, 127, torch.uint8), X),
    ),
    "part of a source": (
        "aten.scatter.src",
        (lambda x, i, s: x.scatter(1, i, s), X, torch.zeros(2, 1, 2, dtype=torch.int64), _r(2, 3, 4)),
    ),
}


@pytest.mark.parametrize("reason", OPAQUE)
def test_what_onnx_computes_otherwise_is_opaque(reason: str) -> None:
    target, (function, *inputs) = OPAQUE[reason]
    assert target in capture_function(function, *inputs).captured.opaque


def test_powers_of_bfloat16_are_translated() -> None:
    captured = capture_function(lambda x, y: (x**3, x**y), P.bfloat16(), X.bfloat16()).captured
    assert not captured.opaque


def test_table_refuses_a_second_translation() -> None:
    with pytest.raises(ValueError, match=r"two translations of add\.Tensor"):
        translation("add.Tensor")(TABLE["add.Tensor"])


def test_every_aten_translation_names_an_operator() -> None:
    unknown = [name for name in TABLE if not _is_operator(name)]
    assert unknown == []


def _is_operator(name: str) -> bool:
    if name.startswith(("operator.", "torch.")):
        return True
    spaces = ("prims", "quantized_decomposed", "torchrlopt")
    space = next((each for each in spaces if name.startswith(f"{each}.")), "aten")
    packet, _, overload = name.removeprefix(f"{space}.").partition(".")
    return overload in getattr(getattr(torch.ops, space), packet).overloads()


def test_equal_scales_are_equal_attributes() -> None:
    def attention(scale: float | None) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda q: F.scaled_dot_product_attention(q, q, q, scale=scale)

    assert "scale" not in capture_function(attention(8**-0.5), Q).node("Attention").attributes
    assert "scale" not in capture_function(attention(None), Q).node("Attention").attributes
    assert capture_function(attention(0.3), Q).node("Attention").attributes[
        "scale"
    ].as_float() == pytest.approx(0.3)
