"""Data movement: concatenation, split, slice, repetition and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from torchrlopt.ops.builder import GraphBuilder
from torchrlopt.ops.conv import interleaved
from torchrlopt.ops.emitter import Emitter, Entry, Ints, SymInt, aten, normal_axis
from torchrlopt.ops.onnx_types import value_dims
from torchrlopt.ops.shape import reshape, transpose
from torchrlopt.ops.to_aten import OpCall, Result, converts
from torchrlopt.ops.to_onnx import (
    SymScalar,
    Target,
    non_negative_axis,
    require,
    shape_value,
    static_int,
    translation,
)

_INT64_MAX = 2**63 - 1


@translation("slice.Tensor")
def _slice(
    g: GraphBuilder, target: Target, x: ir.Value, axis: int, start: Any, end: Any, step: Any
) -> ir.Value:
    source = value_dims(x)
    axis = non_negative_axis(axis, len(source))
    size = source[axis]
    if isinstance(end, SymScalar) and end.dim == size:
        end = None
    start = 0 if start is None else start
    end = _INT64_MAX if end is None else end
    if isinstance(size, int):
        # Canonical form: bounds within the tensor, counted from the start.
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


@converts("Slice")
def _lower_slice(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    rank = emitter.rank(x)
    starts, ends = emitter.ints(call.entry(1)), emitter.ints(call.entry(2))
    given_axes, given_steps = call.maybe(3), call.maybe(4)
    count = range(len(starts))
    axes = list(count) if given_axes is None else emitter.const_ints(given_axes, "axes")
    steps = [1 for _ in count] if given_steps is None else emitter.const_ints(given_steps, "steps")
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        x = _cut(emitter, x, normal_axis(axis, rank), start, end, step, call)
    return x


def _cut(
    emitter: Emitter, x: fx.Node, axis: int, start: SymInt, end: SymInt, step: int, call: OpCall
) -> fx.Node:
    if step == 0:
        raise call.unsupported("step 0")
    if step > 0:
        # torch and ONNX treat negative and oversized bounds alike.
        if isinstance(start, int) and start == 0 and isinstance(end, int) and end >= _INT64_MAX and step == 1:
            return x
        return emitter.op(aten.slice.Tensor, x, axis, start, end, step)
    if not isinstance(start, int) or not isinstance(end, int):
        raise call.unsupported("a negative step and bounds known at run time only")
    size = emitter.static_dim(x, axis)
    picks = list(range(size))[max(start, -size) : end : step]  # ONNX clamps a start to the first element
    return emitter.op(
        aten.index_select.default, x, axis, emitter.constant(torch.tensor(picks, dtype=torch.int64))
    )


@translation("select.int")
def _select(g: GraphBuilder, target: Target, x: ir.Value, axis: int, index: Any) -> ir.Value:
    where = index.value if isinstance(index, SymScalar) else g.scalar(static_int(index), torch.int64)
    return g.op("Gather", x, where, dims=target.dims, axis=non_negative_axis(axis, len(value_dims(x))))


@translation("cat.default")
def _cat(g: GraphBuilder, target: Target, tensors: list[ir.Value], axis: int) -> ir.Value:
    rank = len(target.dims)
    # ATen's legacy rule: it skips empty 1-D tensors, whatever the rank of the others.
    kept = [x for x in tensors if rank == 1 or value_dims(x) != (0,)]
    require(bool(kept), "a concatenation of nothing")
    values = [g.cast(x, target.dtype) for x in kept]
    if len(values) == 1:
        return g.identity(values[0])
    return g.op("Concat", *values, dims=target.dims, axis=non_negative_axis(axis, rank))


@converts("Concat")
def _lower_concat(emitter: Emitter, call: OpCall) -> Entry:
    nodes = call.all_x()
    axis = call.attr("axis", 1)
    # torch would skip an empty 1-D operand silently; in a valid model the ranks agree.
    return nodes[0] if len(nodes) == 1 else emitter.op(aten.cat.default, nodes, axis)


@translation("stack.default")
def _stack(g: GraphBuilder, target: Target, tensors: list[ir.Value], axis: int) -> ir.Value:
    axis = non_negative_axis(axis, len(target.dims))
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
    axis = non_negative_axis(axis, len(value_dims(x)))
    types = [known for known in target.types if known is not None]
    if len(types) == 1:
        return [g.identity(x)]
    parts = [dims[axis] for _, dims in types]
    return g.op_many("Split", [x, shape_value(g, target, tuple(parts), x)], types, axis=axis)


@converts("Split")
def _lower_split(emitter: Emitter, call: OpCall) -> Result:
    x = call.x(0)
    axis = normal_axis(call.attr("axis", 0), emitter.rank(x))
    count = call.num_outputs
    if call.attr("split") is not None:
        sizes: list[SymInt] = list(call.attr("split"))
    elif call.maybe(1) is not None:
        sizes = emitter.ints(call.entry(1))
    else:
        total = emitter.static_dim(x, axis)
        chunk = -(-total // call.attr("num_outputs", count))
        sizes = [max(min(chunk, total - chunk * index), 0) for index in range(count)]
    parts = emitter.op(aten.split_with_sizes.default, x, sizes, axis)
    return tuple(emitter.item(parts, index) for index in range(count))


@translation("unbind.int")
def _unbind(g: GraphBuilder, target: Target, x: ir.Value, axis: int) -> list[ir.Value | None]:
    axis = non_negative_axis(axis, len(value_dims(x)))
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


@converts("Tile")
def _lower_tile(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.op(aten.repeat.default, call.x(0), emitter.ints(call.entry(1)))


@translation("constant_pad_nd.default")
def _constant_pad(g: GraphBuilder, target: Target, x: ir.Value, pad: Sequence[Any], value: Any) -> ir.Value:
    require(isinstance(value, bool | int | float), "a symbolic padding value")
    return _pad(g, target, x, pad, "constant", g.scalar(value, target.dtype) if value else None)


@translation(*(f"{kind}_pad{rank}d.default" for kind in ("reflection", "replication") for rank in (1, 2, 3)))
def _pad_with_elements(g: GraphBuilder, target: Target, x: ir.Value, pad: Sequence[Any]) -> ir.Value:
    return _pad(g, target, x, pad, "reflect" if "reflection" in target.opname else "edge", None)


def _pad(
    g: GraphBuilder, target: Target, x: ir.Value, pad: Sequence[Any], mode: str, value: ir.Value | None
) -> ir.Value:
    rank = len(target.dims)
    begins, ends = [0] * rank, [0] * rank
    # ATen lists (begin, end) pairs from the last axis backwards; ONNX lists all begins, then all ends.
    for index in range(len(pad) // 2):
        begins[rank - 1 - index] = static_int(pad[2 * index])
        ends[rank - 1 - index] = static_int(pad[2 * index + 1])
    if not any(begins) and not any(ends):
        return g.identity(x)
    return g.op("Pad", x, g.ints(begins + ends), value, dims=target.dims, mode=mode)


@converts("Pad")
def _lower_pad(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    rank = emitter.rank(x)
    pads = emitter.ints(call.entry(1))
    value = call.number(2) or 0 if call.maybe(2) is None or _is_constant(call.entry(2)) else 0
    axes_entry = call.maybe(3)
    axes = list(range(rank)) if axes_entry is None else emitter.const_ints(axes_entry, "axes")
    begins: list[SymInt] = [0] * rank
    ends: list[SymInt] = [0] * rank
    for index, axis in enumerate(axes):
        begins[normal_axis(axis, rank)] = pads[index]
        ends[normal_axis(axis, rank)] = pads[index + len(axes)]
    mode = call.attr("mode", "constant")
    if mode == "constant":
        return _pad_constant(emitter, call, x, interleaved(begins, ends), value)
    return _pad_by_index(emitter, call, x, mode, begins, ends)


def _is_constant(entry: Entry) -> bool:
    return isinstance(entry, torch.Tensor | Ints)


def _pad_constant(emitter: Emitter, call: OpCall, x: fx.Node, widths: list[Any], value: float) -> fx.Node:
    fill = call.maybe(2)
    if fill is None or _is_constant(fill):
        return emitter.op(aten.constant_pad_nd.default, x, widths, value)
    # The fill value is a tensor: pad both the data and a mask, then select.
    inside = emitter.op(aten.ones_like.default, x, dtype=torch.bool)
    padded = emitter.op(aten.constant_pad_nd.default, x, widths, 0)
    mask = emitter.op(aten.constant_pad_nd.default, inside, widths, 0)
    scalar = emitter.op(aten.reshape.default, call.x(2), [])
    return emitter.op(aten.where.self, mask, padded, scalar)


def _pad_by_index(
    emitter: Emitter, call: OpCall, x: fx.Node, mode: str, begins: list[SymInt], ends: list[SymInt]
) -> fx.Node:
    """Reflect, edge and wrap: along each axis the padded tensor is a gather from the input."""
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        if begin == 0 and end == 0:
            continue
        size = emitter.static_dim(x, axis)
        if not isinstance(begin, int) or not isinstance(end, int) or size == 0:
            raise call.unsupported(f"mode {mode} and pads known at run time only")
        positions = range(-begin, size + end)
        if mode == "edge":
            picks = [min(max(p, 0), size - 1) for p in positions]
        elif mode == "wrap":
            picks = [p % size for p in positions]
        elif mode == "reflect":
            period = max(2 * (size - 1), 1)
            picks = [min(p % period, period - p % period) if size > 1 else 0 for p in positions]
        else:
            raise call.unsupported(f"mode {mode}")
        x = emitter.op(aten.index_select.default, x, axis, emitter.constant(torch.tensor(picks)))
    return x


@translation("tril.default", "triu.default")
def _triangle(g: GraphBuilder, target: Target, x: ir.Value, diagonal: Any) -> ir.Value:
    upper = int(target.opname == "triu")
    return g.op("Trilu", x, g.scalar(static_int(diagonal), torch.int64), dims=target.dims, upper=upper)


@converts("Trilu")
def _lower_trilu(emitter: Emitter, call: OpCall) -> Entry:
    diagonal = call.number(1) if call.maybe(1) is not None else 0
    target = aten.triu.default if call.attr("upper", 1) else aten.tril.default
    return emitter.op(target, call.x(0), diagonal)


@translation("pixel_shuffle.default")
def _pixel_shuffle(g: GraphBuilder, target: Target, x: ir.Value, factor: int) -> ir.Value:
    require(len(target.dims) == 4, "pixel_shuffle of a rank other than 4")
    return g.op("DepthToSpace", x, dims=target.dims, blocksize=factor, mode="CRD")


@converts("DepthToSpace")
def _lower_depth_to_space(emitter: Emitter, call: OpCall) -> Entry:
    x, block = call.x(0), call.required("blocksize")
    n, c, h, w = emitter.shape(x)
    depth = emitter.floordiv(c, block * block)
    if call.attr("mode", "DCR") == "DCR":
        split, order = [n, block, block, depth, h, w], [0, 3, 4, 1, 5, 2]
    else:
        split, order = [n, depth, block, block, h, w], [0, 1, 4, 2, 5, 3]
    parts = emitter.op(aten.permute.default, emitter.op(aten.reshape.default, x, split), order)
    return emitter.op(aten.reshape.default, parts, [n, depth, emitter.mul(h, block), emitter.mul(w, block)])


@translation("channel_shuffle.default", "native_channel_shuffle.default")
def _channel_shuffle(g: GraphBuilder, target: Target, x: ir.Value, groups: int) -> ir.Value:
    dims = value_dims(x)
    channels = static_int(dims[1])
    apart = (dims[0], groups, channels // groups, *dims[2:])
    swapped = transpose(g, reshape(g, target, x, apart), [0, 2, 1, *range(3, len(apart))])
    return reshape(g, target, swapped, dims)


@converts("SpaceToDepth")
def _lower_space_to_depth(emitter: Emitter, call: OpCall) -> Entry:
    x, block = call.x(0), call.required("blocksize")
    n, c, h, w = emitter.shape(x)
    rows, columns = emitter.floordiv(h, block), emitter.floordiv(w, block)
    parts = emitter.op(aten.reshape.default, x, [n, c, rows, block, columns, block])
    order = [0, 3, 5, 1, 2, 4] if call.attr("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    parts = emitter.op(aten.permute.default, parts, order)
    return emitter.op(aten.reshape.default, parts, [n, emitter.mul(c, block * block), rows, columns])
