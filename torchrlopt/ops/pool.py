"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from torchrlopt.ops.builder import GraphBuilder
from torchrlopt.ops.conv import Window, interleaved
from torchrlopt.ops.emitter import Emitter, Entry, aten
from torchrlopt.ops.onnx_types import Dims, value_dims
from torchrlopt.ops.to_aten import OpCall, Result, converts
from torchrlopt.ops.to_onnx import Target, require, static_int, translation

_MAX_POOL: dict[int, Any] = {
    1: aten.max_pool1d.default,
    2: aten.max_pool2d_with_indices.default,
    3: aten.max_pool3d_with_indices.default,
}
_AVERAGE_POOL: dict[int, Any] = {
    1: aten.avg_pool1d.default,
    2: aten.avg_pool2d.default,
    3: aten.avg_pool3d.default,
}


def _lowest(dtype: torch.dtype) -> float | int:
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _needs_padding(window: Window) -> bool:
    """Whether torch rejects these pads: it requires symmetric ones of at most half the kernel."""
    half = [pad * 2 > kernel for pad, kernel in zip(window.begins, window.kernel, strict=True)]
    return not window.symmetric or any(half)


def _overhang(emitter: Emitter, x: fx.Node, window: Window) -> list[int]:
    """How far the last window extends beyond the padded input in ceil mode, by ONNX's rule."""
    result = []
    for index, kernel in enumerate(window.kernel):
        stride, reach = window.strides[index], window.dilations[index] * (kernel - 1) + 1
        size = emitter.static_dim(x, 2 + index)
        padded = size + window.begins[index] + window.ends[index]
        count = -(-(padded - reach) // stride) + 1
        if (count - 1) * stride >= size + window.begins[index]:
            count -= 1  # drop a window that would start in the right padding
        result.append(max((count - 1) * stride + reach - padded, 0))
    return result


@translation("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def _max_pool(
    g: GraphBuilder,
    target: Target,
    x: ir.Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
) -> list[ir.Value | None]:
    # Index conventions differ: ATen counts within a plane, ONNX within the whole tensor.
    target.need_only(0)
    rank = _pooled_rank(x, kernel, target.dims)
    sizes = _window(kernel, rank)
    made = g.op(
        "MaxPool",
        x,
        dims=target.dims,
        kernel_shape=sizes,
        strides=_window(stride, rank) if stride else sizes,
        pads=_window(padding, rank) * 2,
        dilations=_window(dilation, rank),
        ceil_mode=1 if ceil_mode else None,
    )
    return [made, None]


@converts("MaxPool")
def _lower_max_pool(emitter: Emitter, call: OpCall) -> Result:
    x = call.x(0)
    window = Window(emitter, call, x, call.required("kernel_shape"))
    rank = len(window.kernel)
    with_indices = call.num_outputs > 1 and call.wanted[1]
    if rank not in _MAX_POOL or (with_indices and (call.attr("storage_order", 0) or rank != 2)):
        raise call.unsupported("indices in this form" if rank in _MAX_POOL else f"{rank} dimensions")
    dtype = emitter.dtype(x)
    ceil = bool(call.attr("ceil_mode", 0))
    if not with_indices and (_needs_padding(window) or (ceil and not dtype.is_floating_point)):
        if ceil:
            window.ends = [e + o for e, o in zip(window.ends, _overhang(emitter, x, window), strict=True)]
            ceil = False
        x = window.pad(emitter, x, _lowest(dtype))
    elif with_indices and not window.symmetric:
        raise call.unsupported("indices and asymmetric pads")
    narrow = dtype in (torch.int8, torch.uint8) or not dtype.is_floating_point
    if narrow:
        x = emitter.cast(x, torch.float64)
    y = emitter.op(_MAX_POOL[rank], x, window.kernel, window.strides, window.begins, window.dilations, ceil)
    if rank == 1:
        return emitter.cast(y, dtype)
    values = emitter.cast(emitter.item(y, 0), dtype)
    if not with_indices:
        return values
    return values, _flat_indices(emitter, x, emitter.item(y, 1))


def _flat_indices(emitter: Emitter, x: fx.Node, indices: fx.Node) -> fx.Node:
    """Converts indices within each plane to indices over the whole tensor, as ONNX counts them."""
    planes = emitter.mul(emitter.dim(x, 0), emitter.dim(x, 1))
    size = emitter.prod(emitter.shape(x)[2:])
    start = emitter.op(aten.arange.default, planes, dtype=torch.int64, device=emitter.device)
    offsets = emitter.op(
        aten.reshape.default,
        emitter.op(aten.mul.Tensor, start, size),
        [emitter.dim(x, 0), emitter.dim(x, 1)] + [1] * (emitter.rank(x) - 2),
    )
    return emitter.op(aten.add.Tensor, indices, offsets)


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
    # ATen and ONNX count windows that extend beyond the padding differently.
    require(not (ceil_mode and count_include_pad and any(pads)), "ceil_mode with counted padding")
    sizes = _window(kernel, rank)
    source = value_dims(x)[2:]
    is_over_all = all(isinstance(dim, int) and dim <= size for dim, size in zip(source, sizes, strict=True))
    if is_over_all and source != tuple(sizes) and not any(pads):
        # Only the input counts in a window larger than it, but runtimes iterate over the whole window.
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


@converts("AveragePool")
def _lower_average_pool(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    window = Window(emitter, call, x, call.required("kernel_shape"))
    rank = len(window.kernel)
    if rank not in _AVERAGE_POOL:
        raise call.unsupported(f"{rank} dimensions")
    counted = bool(call.attr("count_include_pad", 0))
    ceil = bool(call.attr("ceil_mode", 0))
    if not _needs_padding(window) and all(d == 1 for d in window.dilations):
        arguments = (window.kernel, window.strides, window.begins, ceil, counted)
        return emitter.op(_AVERAGE_POOL[rank], x, *arguments)
    return _average_by_sums(emitter, call, x, window, ceil, counted)


def _average_by_sums(
    emitter: Emitter, call: OpCall, x: fx.Node, window: Window, ceil: bool, counted: bool
) -> fx.Node:
    """Average pooling as the quotient of two depthwise convolutions: of the input and of its mask."""
    rank = len(window.kernel)
    over = _overhang(emitter, x, window) if ceil else [0] * rank
    mask = emitter.op(aten.ones_like.default, x)
    pads = list(window.begins), list(window.ends)
    padded = window.pad(emitter, x, 0.0)
    mask = emitter.op(aten.constant_pad_nd.default, mask, interleaved(*pads), 1.0 if counted else 0.0)
    widths = interleaved([0] * rank, over)
    channels = emitter.static_dim(x, 1)
    ones = emitter.op(
        aten.ones.default, [channels, 1, *window.kernel], dtype=emitter.dtype(x), device=emitter.device
    )
    sums = []
    for operand in (padded, mask):
        operand = emitter.op(aten.constant_pad_nd.default, operand, widths, 0.0)
        sums.append(
            emitter.op(
                aten.convolution.default,
                *(operand, ones, None, window.strides, [0] * rank, window.dilations, False, [0] * rank),
                channels,
            )
        )
    return emitter.op(aten.div.Tensor, *sums)


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


@converts("GlobalAveragePool")
def _lower_global_average_pool(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    return emitter.op(aten.mean.dim, x, list(range(2, emitter.rank(x))), True)


@converts("GlobalMaxPool")
def _lower_global_max_pool(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    return emitter.op(aten.amax.default, x, list(range(2, emitter.rank(x))), True)
