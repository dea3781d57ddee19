"""Normalisation and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from torchrlopt.ops.builder import GraphBuilder
from torchrlopt.ops.emitter import Emitter, Entry, aten, normal_axis
from torchrlopt.ops.onnx_types import value_dims, value_dtype
from torchrlopt.ops.to_aten import OpCall, Result, converts
from torchrlopt.ops.to_onnx import Target, require, static_int, translation


def _filled_like(g: GraphBuilder, dims: Sequence[Any], value: float, dtype: torch.dtype) -> ir.Value:
    """A constant vector in place of an absent scale or bias."""
    sizes = [static_int(dim) for dim in dims]
    return g.op("Expand", g.scalar(value, dtype), g.ints(sizes), dims=tuple(sizes))


@translation("native_layer_norm.default")
def _layer_norm(
    g: GraphBuilder,
    target: Target,
    x: ir.Value,
    normalized: Sequence[Any],
    weight: ir.Value | None,
    bias: ir.Value | None,
    epsilon: float,
) -> list[ir.Value | None]:
    dtype = value_dtype(x)
    scale = weight if weight is not None else _filled_like(g, normalized, 1.0, dtype)
    types = [known for known in target.types if known is not None]
    # Only training graphs read the mean and the inverse standard deviation.
    wanted = types if target.used - {0} else types[:1]
    made = g.op_many(
        "LayerNormalization",
        [x, g.cast(scale, dtype), None if bias is None else g.cast(bias, dtype)],
        wanted,
        axis=-len(normalized),
        epsilon=float(epsilon),
    )
    return [*made, *[None] * (len(target.types) - len(made))]


@translation("_fused_rms_norm.default")
def _rms_norm(
    g: GraphBuilder,
    target: Target,
    x: ir.Value,
    normalized: Sequence[Any],
    weight: ir.Value | None,
    epsilon: float | None,
) -> list[ir.Value | None]:
    target.need_only(0)
    dtype = value_dtype(x)
    scale = weight if weight is not None else _filled_like(g, normalized, 1.0, dtype)
    found = torch.finfo(dtype).eps if epsilon is None else float(epsilon)
    axis = -len(normalized)
    made = g.op("RMSNormalization", x, g.cast(scale, dtype), dims=target.dims, axis=axis, epsilon=found)
    return [made, None]


@converts("LayerNormalization")
def _lower_layer_norm(emitter: Emitter, call: OpCall) -> Result:
    x, scale, bias = call.x(0), call.x(1), call.maybe_x(2)
    axis = normal_axis(call.attr("axis", -1), emitter.rank(x))
    sizes = emitter.shape(x)[axis:]
    if emitter.dtype(x) == torch.float64 and call.attr("stash_type", 1) == 1 and call.num_outputs > 1:
        raise call.unsupported("float64 statistics in float32")
    scale = _full(emitter, scale, sizes)
    bias = None if bias is None else _full(emitter, bias, sizes)
    found = emitter.op(aten.native_layer_norm.default, x, sizes, scale, bias, call.attr("epsilon", 1e-5))
    return tuple(emitter.item(found, index) for index in range(call.num_outputs))


def _full(emitter: Emitter, affine: fx.Node, sizes: list[Any]) -> fx.Node:
    """A scale or bias in exactly the normalised shape, as torch requires."""
    if emitter.shape(affine) == sizes:
        return affine
    if emitter.rank(affine) > len(sizes):
        affine = emitter.op(aten.reshape.default, affine, emitter.shape(affine)[-len(sizes) :])
    return emitter.op(aten.expand.default, affine, sizes)


@converts("RMSNormalization")
def _lower_rms_norm(emitter: Emitter, call: OpCall) -> Entry:
    x, scale = call.x(0), call.x(1)
    axis = normal_axis(call.attr("axis", -1), emitter.rank(x))
    epsilon = call.attr("epsilon", 1e-5)
    dtype = emitter.dtype(x)
    narrow = dtype in (torch.float16, torch.bfloat16)
    wide = emitter.cast(x, torch.float32) if narrow else x
    dims = list(range(axis, emitter.rank(x)))
    squares = emitter.op(aten.mean.dim, emitter.op(aten.pow.Tensor_Scalar, wide, 2), dims, True)
    inverse = emitter.op(aten.rsqrt.default, emitter.op(aten.add.Tensor, squares, epsilon))
    normal = emitter.cast(emitter.op(aten.mul.Tensor, wide, inverse), dtype)
    return emitter.op(aten.mul.Tensor, normal, scale)


@translation("native_group_norm.default")
def _group_norm(
    g: GraphBuilder,
    target: Target,
    x: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    batch: Any,
    channels: Any,
    area: Any,
    groups: int,
    epsilon: float,
) -> list[ir.Value | None]:
    target.need_only(0)
    dtype = value_dtype(x)
    scale = weight if weight is not None else _filled_like(g, [channels], 1.0, dtype)
    shift = bias if bias is not None else _filled_like(g, [channels], 0.0, dtype)
    made = g.op(
        "GroupNormalization", x, scale, shift, dims=target.dims, num_groups=groups, epsilon=float(epsilon)
    )
    return [made, None, None]


@converts("GroupNormalization")
def _lower_group_norm(emitter: Emitter, call: OpCall) -> Entry:
    x, scale, bias = call.x(0), call.x(1), call.x(2)
    groups, epsilon = call.required("num_groups"), call.attr("epsilon", 1e-5)
    return emitter.op(aten.group_norm.default, x, groups, scale, bias, epsilon, False)


@translation("_native_batch_norm_legit_no_training.default")
def _batch_norm(
    g: GraphBuilder,
    target: Target,
    x: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    mean: ir.Value,
    variance: ir.Value,
    momentum: float,
    epsilon: float,
) -> list[ir.Value | None]:
    target.need_only(0)
    channels, dtype = value_dims(mean), value_dtype(mean)
    scale = weight if weight is not None else _filled_like(g, channels, 1.0, dtype)
    shift = bias if bias is not None else _filled_like(g, channels, 0.0, dtype)
    inputs = [x, scale, shift, mean, variance]
    made = g.op("BatchNormalization", *inputs, dims=target.dims, epsilon=float(epsilon))
    return [made, None, None]


@converts("BatchNormalization")
def _lower_batch_norm(emitter: Emitter, call: OpCall) -> Entry:
    if call.attr("training_mode", 0) or any(call.wanted[1:]):
        raise call.unsupported("training mode: it updates the statistics")
    x = call.x(0)
    affine = [emitter.cast(call.x(index), emitter.dtype(x)) for index in range(1, 5)]
    epsilon = call.attr("epsilon", 1e-5)
    target = aten._native_batch_norm_legit_no_training.default
    return emitter.item(emitter.op(target, x, *affine, 0.0, epsilon), 0)


@translation("_softmax.default", "_log_softmax.default")
def _softmax(g: GraphBuilder, target: Target, x: ir.Value, axis: int, half_to_float: bool) -> ir.Value:
    return _over_axis(g, target, "Softmax" if target.opname == "_softmax" else "LogSoftmax", x, axis)


@converts("Softmax", "LogSoftmax")
def _lower_softmax(emitter: Emitter, call: OpCall) -> Entry:
    target = aten._softmax.default if call.op_type == "Softmax" else aten._log_softmax.default
    x = call.x(0)
    return emitter.op(target, x, normal_axis(call.attr("axis", -1), emitter.rank(x)), False)


@translation("_safe_softmax.default")
def _safe_softmax(g: GraphBuilder, target: Target, x: ir.Value, axis: int, dtype: object) -> ir.Value:
    # Fully masked rows are 0 here, whereas Softmax gives NaN.
    result = _over_axis(g, target, "Softmax", x, axis)
    rank, dtype_in = len(target.dims), value_dtype(x)
    dims = tuple(1 if at == axis % rank else dim for at, dim in enumerate(target.dims))
    largest = g.op("ReduceMax", x, g.ints([axis % rank]), dims=dims, keepdims=1)
    masked = g.op("Equal", largest, g.scalar(float("-inf"), dtype_in), dtype=torch.bool)
    return g.op("Where", masked, g.scalar(0.0, target.dtype), result, dtype=target.dtype)


def _over_axis(g: GraphBuilder, target: Target, op_type: str, x: ir.Value, axis: int) -> ir.Value:
    rank = len(target.dims)
    require(rank > 0, f"{op_type} of a scalar")
    axis %= rank
    return g.op(op_type, g.cast(x, target.dtype), axis=-1 if axis == rank - 1 else axis)


@translation("glu.default")
def _glu(g: GraphBuilder, target: Target, x: ir.Value, axis: int) -> ir.Value:
    at = axis % len(target.dims)
    half = static_int(target.dims[at])
    first, second = g.op_many("Split", [x, g.ints([half, half])], [(target.dtype, target.dims)] * 2, axis=at)
    return g.op("Mul", first, g.op("Sigmoid", second))


@converts("InstanceNormalization")
def _lower_instance_norm(emitter: Emitter, call: OpCall) -> Entry:
    x, scale, bias = call.x(0), call.x(1), call.x(2)
    arguments = (None, None, True, 0.0, call.attr("epsilon", 1e-5), False)
    return emitter.op(aten.instance_norm.default, x, scale, bias, *arguments)


@converts("LRN")
def _lower_lrn(emitter: Emitter, call: OpCall) -> Entry:
    x, size = call.x(0), call.required("size")
    alpha, beta, bias = call.attr("alpha", 1e-4), call.attr("beta", 0.75), call.attr("bias", 1.0)
    rank = emitter.rank(x)
    squares = emitter.op(aten.mul.Tensor, x, x)
    before = (size - 1) // 2
    behind = 2 * (rank - 2)
    padded = emitter.op(aten.constant_pad_nd.default, squares, [0] * behind + [before, size - 1 - before])
    windows = emitter.op(aten.unfold.default, padded, 1, size, 1)
    total = emitter.op(aten.sum.dim_IntList, windows, [rank])
    base = emitter.op(aten.add.Tensor, emitter.op(aten.mul.Tensor, total, alpha / size), bias)
    return emitter.op(aten.div.Tensor, x, emitter.op(aten.pow.Tensor_Scalar, base, beta))


@converts("LpNormalization")
def _lower_lp_norm(emitter: Emitter, call: OpCall) -> Entry:
    x, axis, power = call.x(0), call.attr("axis", -1), call.attr("p", 2)
    norm = emitter.op(aten.linalg_vector_norm.default, x, power, [axis], True)
    quotient = emitter.op(aten.div.Tensor, x, norm)
    # A zero vector stays zero.
    zero = emitter.op(aten.zeros_like.default, x)
    return emitter.op(aten.where.self, emitter.op(aten.eq.Scalar, norm, 0), zero, quotient)


@converts("Hardmax")
def _lower_hardmax(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    axis = normal_axis(call.attr("axis", -1), emitter.rank(x))
    position = emitter.op(aten.argmax.default, x, axis, True)
    return emitter.op(aten.scatter.value, emitter.op(aten.zeros_like.default, x), axis, position, 1)


@translation("_weight_norm_interface.default")
def _weight_norm(g: GraphBuilder, target: Target, v: ir.Value, scale: ir.Value, axis: int) -> list[Any]:
    require(target.used <= {0}, "the norm of a weight norm")
    dims = value_dims(v)
    others = [each for each in range(len(dims)) if each != axis]
    kept = tuple(dim if each == axis else 1 for each, dim in enumerate(dims))
    norm = g.op("ReduceL2", v, g.ints(others), dims=kept, keepdims=1)
    return [g.op("Mul", v, g.op("Div", scale, norm, dims=kept), dims=dims), None]
