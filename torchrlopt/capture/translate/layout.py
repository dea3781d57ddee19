"""Direct translations of ATen operators that move data: views, slices, concatenation, padding, creation.

Every shape-like input is a constant where ONNX allows it to be, with symbolic dims too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from torchrlopt.capture.builder import GraphBuilder
from torchrlopt.capture.onnx_types import Dims, reshape_target, value_dims
from torchrlopt.capture.translate.table import (
    SymScalar,
    Target,
    normal_axes,
    normal_axis,
    require,
    shape_value,
    static_int,
    translation,
)

_INT64_MAX = 2**63 - 1


def reshape(g: GraphBuilder, target: Target, x: ir.Value, dims: Dims) -> ir.Value:
    """Emits a Reshape of x to dims, with a constant target shape wherever there is one."""
    source = value_dims(x)
    if source == dims:
        return g.identity(x)
    sizes = reshape_target(source, dims)
    if sizes is None:
        require(0 not in dims, "a Reshape of an empty tensor to symbolic dims")
        return g.op("Reshape", x, shape_value(g, target, dims, x), dims=dims)
    # A literal zero is a size here, not "copy": it only appears where every dim is known.
    allow_zero = 1 if 0 in dims else None
    return g.op("Reshape", x, g.ints(sizes), dims=dims, allowzero=allow_zero)


@translation("view.default", "_unsafe_view.default", "view_copy.default")
def _view(g: GraphBuilder, target: Target, x: ir.Value, size: object) -> ir.Value:
    return reshape(g, target, x, target.dims)


@translation("_reshape_copy.default")
def _reshape_copy(g: GraphBuilder, target: Target, x: ir.Value, *sizes: object) -> ir.Value:
    return reshape(g, target, x, target.dims)


@translation(
    "clone.default",
    "detach.default",
    "alias.default",
    "lift_fresh_copy.default",
)
def _identity(g: GraphBuilder, target: Target, x: ir.Value, *options: Any) -> ir.Value:
    if len(options) == 2:
        require(options[1] is False or options[0] == 0, "dropout in training")
    return g.identity(x)


@translation("native_dropout.default")
def _native_dropout(g: GraphBuilder, target: Target, x: ir.Value, p: float, train: Any) -> list[Any]:
    target.need_only(0)
    require(train is False, "dropout in training")
    return [g.identity(x), None]


@translation("expand.default")
def _expand(g: GraphBuilder, target: Target, x: ir.Value, *options: object) -> ir.Value:
    source, dims = value_dims(x), target.dims
    if source == dims:
        return g.identity(x)
    # A 1 in Expand's shape keeps the input's dim, so only newly made dims have to be named.
    offset = len(dims) - len(source)
    wanted: Dims = tuple(
        1 if axis >= offset and isinstance(dim, str) and source[axis - offset] == dim else dim
        for axis, dim in enumerate(dims)
    )
    return g.op("Expand", x, shape_value(g, target, wanted, x), dims=dims)


@translation("unsqueeze.default")
def _unsqueeze(g: GraphBuilder, target: Target, x: ir.Value, axis: int) -> ir.Value:
    axes = g.ints([axis % (len(value_dims(x)) + 1)])
    return g.op("Unsqueeze", x, axes, dims=target.dims)


@translation("squeeze.default", "squeeze.dim", "squeeze.dims")
def _squeeze(g: GraphBuilder, target: Target, x: ir.Value, axes: Any = None) -> ir.Value:
    source = value_dims(x)
    chosen = [] if axes == [] else normal_axes(axes, len(source))  # no axes given are all, an empty list none
    # ATen leaves an axis alone whose size is not 1; ONNX refuses it.
    kept = [axis for axis in chosen if axis < len(source) and source[axis] == 1]
    if not kept:
        return g.identity(x)
    return g.op("Squeeze", x, g.ints(kept), dims=target.dims)


@translation("permute.default")
def _permute(g: GraphBuilder, target: Target, x: ir.Value, order: Sequence[int]) -> ir.Value:
    return transpose(g, x, [axis % len(order) for axis in order])


@translation("transpose.int")
def _transpose(g: GraphBuilder, target: Target, x: ir.Value, first: int, second: int) -> ir.Value:
    order = list(range(len(value_dims(x))))
    if order:
        first, second = first % len(order), second % len(order)
        order[first], order[second] = order[second], order[first]
    return transpose(g, x, order)


@translation("t.default")
def _t(g: GraphBuilder, target: Target, x: ir.Value) -> ir.Value:
    return transpose(g, x, list(range(len(value_dims(x))))[::-1])


def transpose(g: GraphBuilder, x: ir.Value, order: list[int]) -> ir.Value:
    """Emits a Transpose, or nothing but an Identity where the order is the natural one."""
    if order == sorted(order):
        return g.identity(x)
    dims = value_dims(x)
    return g.op("Transpose", x, dims=tuple(dims[axis] for axis in order), perm=order)


@translation("slice.Tensor")
def _slice(
    g: GraphBuilder, target: Target, x: ir.Value, axis: int, start: Any, end: Any, step: Any
) -> ir.Value:
    source = value_dims(x)
    axis = normal_axis(axis, len(source))
    size = source[axis]
    if isinstance(end, SymScalar) and end.dim == size:
        end = None
    start = 0 if start is None else start
    end = _INT64_MAX if end is None else end
    if isinstance(size, int):
        # One form for one slice: bounds within the tensor, counted from its beginning.
        start, end = (_clamped(bound, size) for bound in (start, end))
    if start == 0 and end in (size, _INT64_MAX) and step == 1:
        return g.identity(x)
    bounds = [_index_input(g, bound) for bound in (start, end)]
    return g.op("Slice", x, *bounds, g.ints([axis]), g.ints([static_int(step)]), dims=target.dims)


def _clamped(bound: Any, size: int) -> Any:
    if not isinstance(bound, int):
        return bound
    return min(max(bound + size if bound < 0 else bound, 0), size)


def _index_input(g: GraphBuilder, index: Any) -> ir.Value:
    if isinstance(index, SymScalar):
        return g.op("Reshape", index.value, g.ints([1]), dims=(1,))
    return g.ints([static_int(index)])


@translation("select.int")
def _select(g: GraphBuilder, target: Target, x: ir.Value, axis: int, index: Any) -> ir.Value:
    where = index.value if isinstance(index, SymScalar) else g.scalar(static_int(index), torch.int64)
    return g.op("Gather", x, where, dims=target.dims, axis=normal_axis(axis, len(value_dims(x))))


@translation("cat.default")
def _cat(g: GraphBuilder, target: Target, tensors: list[ir.Value], axis: int) -> ir.Value:
    rank = len(target.dims)
    # ATen's legacy rule: 1-D empty tensors are skipped whatever the rank of the others.
    kept = [x for x in tensors if rank == 1 or value_dims(x) != (0,)]
    require(bool(kept), "a concatenation of nothing")
    values = [g.cast(x, target.dtype) for x in kept]
    if len(values) == 1:
        return g.identity(values[0])
    return g.op("Concat", *values, dims=target.dims, axis=normal_axis(axis, rank))


@translation("stack.default")
def _stack(g: GraphBuilder, target: Target, tensors: list[ir.Value], axis: int) -> ir.Value:
    axis = normal_axis(axis, len(target.dims))
    dims = tuple(1 if at == axis else dim for at, dim in enumerate(target.dims))
    parts = [g.op("Unsqueeze", g.cast(x, target.dtype), g.ints([axis]), dims=dims) for x in tensors]
    return parts[0] if len(parts) == 1 else g.op("Concat", *parts, dims=target.dims, axis=axis)


@translation(
    "split.Tensor",
    "split_with_sizes.default",
    "unsafe_split.Tensor",
    "unsafe_split_with_sizes.default",
)
def _split(g: GraphBuilder, target: Target, x: ir.Value, sizes: object, axis: int) -> list[ir.Value]:
    axis = normal_axis(axis, len(value_dims(x)))
    types = [known for known in target.types if known is not None]
    if len(types) == 1:
        return [g.identity(x)]
    parts = [dims[axis] for _, dims in types]
    return g.op_many("Split", [x, shape_value(g, target, tuple(parts), x)], types, axis=axis)


@translation("unbind.int")
def _unbind(g: GraphBuilder, target: Target, x: ir.Value, axis: int) -> list[ir.Value | None]:
    axis = normal_axis(axis, len(value_dims(x)))
    made: list[ir.Value | None] = []
    for index in range(len(target.types)):
        where = g.scalar(index, torch.int64)
        used = index in target.used
        made.append(g.op("Gather", x, where, dims=target.dims, axis=axis) if used else None)
    return made


@translation("flip.default")
def _flip(g: GraphBuilder, target: Target, x: ir.Value, axes: Sequence[int]) -> ir.Value:
    rank = len(target.dims)
    if not axes or not rank:
        return g.identity(x)
    num_axes = len(axes)
    starts, ends = g.ints([-1] * num_axes), g.ints([-_INT64_MAX] * num_axes)
    steps = g.ints([-1] * num_axes)
    return g.op("Slice", x, starts, ends, g.ints([axis % rank for axis in axes]), steps, dims=target.dims)


@translation("repeat.default")
def _repeat(g: GraphBuilder, target: Target, x: ir.Value, repeats: Sequence[Any]) -> ir.Value:
    source = value_dims(x)
    counts = [static_int(count) for count in repeats]
    missing = len(counts) - len(source)
    padded = (1,) * missing + source
    if missing:
        x = reshape(g, target, x, padded)
    return g.op("Tile", x, g.ints(counts), dims=target.dims)


@translation("constant_pad_nd.default")
def _constant_pad(g: GraphBuilder, target: Target, x: ir.Value, pad: Sequence[Any], value: Any) -> ir.Value:
    require(isinstance(value, bool | int | float), "a symbolic padding value")
    return _pad(g, target, x, pad, "constant", g.scalar(value, target.dtype) if value else None)


@translation("reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default")
def _reflection_pad(g: GraphBuilder, target: Target, x: ir.Value, pad: Sequence[Any]) -> ir.Value:
    return _pad(g, target, x, pad, "reflect", None)


@translation("replication_pad1d.default", "replication_pad2d.default", "replication_pad3d.default")
def _replication_pad(g: GraphBuilder, target: Target, x: ir.Value, pad: Sequence[Any]) -> ir.Value:
    return _pad(g, target, x, pad, "edge", None)


def _pad(
    g: GraphBuilder, target: Target, x: ir.Value, pad: Sequence[Any], mode: str, value: ir.Value | None
) -> ir.Value:
    rank = len(target.dims)
    begins, ends = [0] * rank, [0] * rank
    # ATen lists (begin, end) pairs from the last axis backwards; ONNX all begins, then all ends.
    for index in range(len(pad) // 2):
        begins[rank - 1 - index] = static_int(pad[2 * index])
        ends[rank - 1 - index] = static_int(pad[2 * index + 1])
    if not any(begins) and not any(ends):
        return g.identity(x)
    return g.op("Pad", x, g.ints(begins + ends), value, dims=target.dims, mode=mode)


@translation("tril.default", "triu.default")
def _triangle(g: GraphBuilder, target: Target, x: ir.Value, diagonal: Any) -> ir.Value:
    upper = int(str(target.node.target).startswith("aten.triu"))
    return g.op("Trilu", x, g.scalar(static_int(diagonal), torch.int64), dims=target.dims, upper=upper)


@translation("pixel_shuffle.default")
def _pixel_shuffle(g: GraphBuilder, target: Target, x: ir.Value, factor: int) -> ir.Value:
    require(len(target.dims) == 4, "pixel_shuffle of a rank other than 4")
    return g.op("DepthToSpace", x, dims=target.dims, blocksize=factor, mode="CRD")


@translation("channel_shuffle.default", "native_channel_shuffle.default")
def _channel_shuffle(g: GraphBuilder, target: Target, x: ir.Value, groups: int) -> ir.Value:
    dims = value_dims(x)
    channels = static_int(dims[1])
    apart = (dims[0], groups, channels // groups, *dims[2:])
    swapped = transpose(g, reshape(g, target, x, apart), [0, 2, 1, *range(3, len(apart))])
    return reshape(g, target, swapped, dims)


@translation("full.default", "full_like.default", "new_full.default")
def _full(g: GraphBuilder, target: Target, *arguments: Any) -> ir.Value:
    # full(size, value), full_like(x, value), but new_full(x, size, value).
    value = arguments[2] if str(target.node.target).startswith("aten.new_full") else arguments[1]
    return _filled(g, target, value, arguments[0])


@translation("zeros.default", "zeros_like.default", "new_zeros.default")
def _zeros(g: GraphBuilder, target: Target, *arguments: Any) -> ir.Value:
    return _filled(g, target, 0, arguments[0])


@translation("ones.default", "ones_like.default", "new_ones.default")
def _ones(g: GraphBuilder, target: Target, *arguments: Any) -> ir.Value:
    return _filled(g, target, 1, arguments[0])


@translation("scalar_tensor.default")
def _scalar_tensor(g: GraphBuilder, target: Target, value: Any, *options: Any) -> ir.Value:
    return _filled(g, target, value, None)


def _filled(g: GraphBuilder, target: Target, value: Any, source: Any) -> ir.Value:
    if isinstance(value, SymScalar):
        scalar = g.cast(value.value, target.dtype)
    else:
        require(isinstance(value, bool | int | float), f"fill value {value!r}")
        scalar = g.scalar(value, target.dtype)
    if not target.dims:
        return g.identity(scalar)
    sources = [source] if isinstance(source, ir.Value) else []
    return g.op("Expand", scalar, shape_value(g, target, target.dims, *sources), dims=target.dims)


@translation("arange.default")
def _arange(g: GraphBuilder, target: Target, end: Any, *options: Any) -> ir.Value:
    return _range(g, target, 0, end, 1)


@translation("arange.start")
def _arange_start(g: GraphBuilder, target: Target, start: Any, end: Any, *options: Any) -> ir.Value:
    return _range(g, target, start, end, 1)


@translation("arange.start_step")
def _arange_step(g: GraphBuilder, target: Target, start: Any, end: Any, step: Any, *options: Any) -> ir.Value:
    return _range(g, target, start, end, step)


def _range(g: GraphBuilder, target: Target, *bounds: Any) -> ir.Value:
    dtype = target.dtype
    require(dtype in (torch.int64, torch.int32), "a range of floats rounds differently")
    values = [
        g.cast(bound.value, dtype) if isinstance(bound, SymScalar) else g.scalar(static_int(bound), dtype)
        for bound in bounds
    ]
    return g.op("Range", *values, dims=target.dims)
