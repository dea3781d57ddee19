"""Direct translations of normalisation, softmax and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from torchrlopt.capture.builder import GraphBuilder
from torchrlopt.capture.onnx_types import Dims, value_dims, value_dtype
from torchrlopt.capture.translate.table import Target, require, static_int, translation


def _filled_like(g: GraphBuilder, dims: Sequence[Any], value: float, dtype: torch.dtype) -> ir.Value:
    """A constant vector that stands for an absent scale or bias."""
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
    # Mean and inverse deviation are read by training graphs only.
    wanted = types if target.used - {0} else types[:1]
    made = g.op_many(
        "LayerNormalization",
        [x, g.cast(scale, dtype), None if bias is None else g.cast(bias, dtype)],
        wanted,
        axis=-len(normalized),
        epsilon=float(epsilon),
    )
    return [*made, *[None] * (len(target.types) - len(made))]


def _rms_norm(
    g: GraphBuilder,
    target: Target,
    x: ir.Value,
    normalized: Sequence[Any],
    weight: ir.Value | None,
    epsilon: float | None,
) -> ir.Value:
    dtype = value_dtype(x)
    scale = weight if weight is not None else _filled_like(g, normalized, 1.0, dtype)
    found = torch.finfo(dtype).eps if epsilon is None else float(epsilon)
    axis = -len(normalized)
    return g.op("RMSNormalization", x, g.cast(scale, dtype), dims=target.dims, axis=axis, epsilon=found)


@translation("_fused_rms_norm.default")
def _fused_rms_norm(g: GraphBuilder, target: Target, *arguments: Any) -> list[ir.Value | None]:
    target.need_only(0)
    return [_rms_norm(g, target, *arguments), None]


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


@translation("_softmax.default")
def _softmax(g: GraphBuilder, target: Target, x: ir.Value, axis: int, half_to_float: bool) -> ir.Value:
    return _over_axis(g, target, "Softmax", x, axis)


@translation("_log_softmax.default")
def _log_softmax(g: GraphBuilder, target: Target, x: ir.Value, axis: int, half_to_float: bool) -> ir.Value:
    return _over_axis(g, target, "LogSoftmax", x, axis)


@translation("_safe_softmax.default")
def _safe_softmax(g: GraphBuilder, target: Target, x: ir.Value, axis: int, dtype: object) -> ir.Value:
    # Rows that are masked out altogether are 0 here, where Softmax has NaN.
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


@translation("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def _max_pool_with_indices(
    g: GraphBuilder, target: Target, x: ir.Value, *window: Any
) -> list[ir.Value | None]:
    # The indices count differently: within a plane in ATen, within the whole tensor in ONNX.
    target.need_only(0)
    return [_max_pool(g, target, x, *window), None]


def _max_pool(
    g: GraphBuilder,
    target: Target,
    x: ir.Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
) -> ir.Value:
    rank = _pooled_rank(x, kernel, target.dims)
    sizes = _window(kernel, rank)
    return g.op(
        "MaxPool",
        x,
        dims=target.dims,
        kernel_shape=sizes,
        strides=_window(stride, rank) if stride else sizes,
        pads=_window(padding, rank) * 2,
        dilations=_window(dilation, rank),
        ceil_mode=1 if ceil_mode else None,
    )


@translation("avg_pool2d.default", "avg_pool3d.default")
def _avg_pool(
    g: GraphBuilder,
    target: Target,
    x: ir.Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None = None,
) -> ir.Value:
    rank = _pooled_rank(x, kernel, target.dims)
    pads = _window(padding, rank)
    require(divisor is None, "average pooling with its own divisor")
    # The two disagree on what a window counts that reaches beyond the padding.
    require(not (ceil_mode and count_include_pad and any(pads)), "ceil_mode with counted padding")
    sizes = _window(kernel, rank)
    source = value_dims(x)[2:]
    is_over_all = all(isinstance(dim, int) and dim <= size for dim, size in zip(source, sizes, strict=True))
    if is_over_all and source != tuple(sizes) and not any(pads):
        # A window beyond the input, of which only the input counts; runtimes walk through all of it.
        return g.op("ReduceMean", x, g.ints(range(2, rank + 2)), dims=target.dims, keepdims=1)
    return g.op(
        "AveragePool",
        x,
        dims=target.dims,
        kernel_shape=sizes,
        strides=_window(stride, rank) if stride else sizes,
        pads=pads * 2,
        ceil_mode=1 if ceil_mode else None,
        count_include_pad=1 if count_include_pad and any(pads) else None,
    )


def _pooled_rank(x: ir.Value, kernel: Sequence[int], dims: Dims) -> int:
    rank = len(dims) - 2
    require(
        len(kernel) in (1, rank) and rank in (1, 2, 3) and len(value_dims(x)) == rank + 2, "unbatched pooling"
    )
    return rank


def _window(sizes: Any, rank: int) -> list[int]:
    ints = [sizes] if isinstance(sizes, int) else [static_int(size) for size in sizes]
    return ints * rank if len(ints) == 1 else ints


@translation("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def _adaptive_avg_pool(g: GraphBuilder, target: Target, x: ir.Value, output_size: Sequence[Any]) -> ir.Value:
    source, rank = value_dims(x)[2:], len(output_size)
    require(len(target.dims) == rank + 2, "unbatched pooling")
    if all(size == 1 for size in output_size):
        axes = g.ints(range(2, rank + 2))
        return g.op("ReduceMean", x, axes, dims=target.dims, keepdims=1)
    sizes, wanted = [static_int(dim) for dim in source], [static_int(size) for size in output_size]
    require(all(a % b == 0 for a, b in zip(sizes, wanted, strict=True)), "adaptive pooling of uneven windows")
    window = [a // b for a, b in zip(sizes, wanted, strict=True)]
    return g.op("AveragePool", x, dims=target.dims, kernel_shape=window, strides=window)


@translation("glu.default")
def _glu(g: GraphBuilder, target: Target, x: ir.Value, axis: int) -> ir.Value:
    at = axis % len(target.dims)
    half = static_int(target.dims[at])
    first, second = g.op_many("Split", [x, g.ints([half, half])], [(target.dtype, target.dims)] * 2, axis=at)
    return g.op("Mul", first, g.op("Sigmoid", second))
