"""Gather and scatter: reading and writing by index."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from torchrlopt.ops.builder import GraphBuilder
from torchrlopt.ops.emitter import Emitter, Entry, aten, normal_axis
from torchrlopt.ops.onnx_types import value_dims, value_dtype
from torchrlopt.ops.shape import transpose
from torchrlopt.ops.to_aten import OpCall, converts
from torchrlopt.ops.to_onnx import Target, non_negative_axis, require, shape_value, translation


def _from_front(emitter: Emitter, entry: Entry, size: Any, is_from_front: bool = False) -> fx.Node:
    """Indices as int64, counted from the front: `size` is added to negative ones, which some kernels reject.

    If the original rejects negative indices, too (`is_from_front`), nothing is added.
    """
    if is_from_front:
        return emitter.cast(emitter.tensor(entry), torch.int64)
    if isinstance(entry, torch.Tensor) and isinstance(size, int):
        wide = entry.to(torch.int64)
        return emitter.constant(torch.where(wide < 0, wide + size, wide))
    indices = emitter.cast(emitter.tensor(entry), torch.int64)
    shifted = emitter.op(aten.add.Tensor, indices, size)
    return emitter.op(aten.where.self, emitter.op(aten.lt.Scalar, indices, 0), shifted, indices)


@translation("embedding.default")
def _embedding(g: GraphBuilder, target: Target, weight: ir.Value, ids: ir.Value, *options: Any) -> ir.Value:
    return g.op("Gather", weight, ids, dims=target.dims, axis=0)


@converts("Gather")
def _lower_gather(emitter: Emitter, call: OpCall) -> Entry:
    x, entry = call.x(0), call.entry(1)
    axis = normal_axis(call.attr("axis", 0), emitter.rank(x))
    known = emitter.known_ints(entry)
    if known is not None and known.rank == 0:
        return emitter.op(aten.select.int, x, axis, known.elements[0])
    if known is not None and all(isinstance(e, int) and e >= 0 for e in known.elements):
        indices = emitter.cast(emitter.tensor(entry), torch.int64)
        return emitter.op(aten.index_select.default, x, axis, indices)
    indices = emitter.tensor(entry)
    if emitter.dtype(indices) not in (torch.int32, torch.int64):
        indices = emitter.cast(indices, torch.int64)
    if call.is_from_front:
        return _rows(emitter, x, axis, indices)
    # index accepts negative indices.
    return emitter.op(aten.index.Tensor, x, [None] * axis + [indices])


def _rows(emitter: Emitter, x: fx.Node, axis: int, indices: fx.Node) -> fx.Node:
    """Reads by `embedding` or `index_select`, which reject negative indices."""
    if axis == 0 and emitter.rank(x) == 2:
        return emitter.op(aten.embedding.default, x, indices)
    if emitter.rank(indices) == 1:
        return emitter.op(aten.index_select.default, x, axis, indices)
    shape = emitter.shape(x)
    flat = emitter.op(aten.reshape.default, indices, [-1])
    found = emitter.op(aten.index_select.default, x, axis, flat)
    sizes = [*shape[:axis], *emitter.shape(indices), *shape[axis + 1 :]]
    return emitter.op(aten.reshape.default, found, sizes)


@translation("index_select.default")
def _index_select(g: GraphBuilder, target: Target, x: ir.Value, axis: int, index: ir.Value) -> ir.Value:
    require(bool(value_dims(x)) and len(value_dims(index)) == 1, "index_select on scalars")
    return g.op("Gather", x, index, dims=target.dims, axis=non_negative_axis(axis, len(value_dims(x))))


@translation("gather.default")
def _gather(
    g: GraphBuilder, target: Target, x: ir.Value, axis: int, index: ir.Value, sparse: bool
) -> ir.Value:
    rank = len(value_dims(x))
    require(rank > 0 and len(value_dims(index)) == rank, "gather on scalars")
    return g.op("GatherElements", x, index, dims=target.dims, axis=non_negative_axis(axis, rank))


@converts("GatherElements")
def _lower_gather_elements(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    axis = normal_axis(call.attr("axis", 0), emitter.rank(x))
    indices = _from_front(emitter, call.entry(1), emitter.dim(x, axis), call.is_from_front)
    return emitter.op(aten.gather.default, x, axis, indices)


@translation("scatter.src", "scatter_add.default")
def _scatter(
    g: GraphBuilder, target: Target, x: ir.Value, axis: int, index: ir.Value, source: ir.Value
) -> ir.Value:
    rank = len(value_dims(x))
    # ATen reads only the part of the source that the index covers.
    require(rank > 0 and value_dims(source) == value_dims(index), "scatter of a part of the source")
    at, how = non_negative_axis(axis, rank), "add" if target.opname == "scatter_add" else None
    return g.op("ScatterElements", x, index, source, dims=target.dims, axis=at, reduction=how)


@converts("ScatterElements")
def _lower_scatter_elements(emitter: Emitter, call: OpCall) -> Entry:
    x, updates = call.x(0), call.x(2)
    axis = normal_axis(call.attr("axis", 0), emitter.rank(x))
    indices = _from_front(emitter, call.entry(1), emitter.dim(x, axis), call.is_from_front)
    reduction = call.attr("reduction", "none")
    if reduction == "none":
        return emitter.op(aten.scatter.src, x, axis, indices, updates)
    name = call.choice("reduction", "none", _REDUCTIONS)
    return emitter.op(aten.scatter_reduce.two, x, axis, indices, updates, name, include_self=True)


@translation("index.Tensor", "_unsafe_index.Tensor")
def _index(g: GraphBuilder, target: Target, x: ir.Value, indices: list[ir.Value | None]) -> ir.Value:
    given = {axis: index for axis, index in enumerate(indices) if index is not None}
    require(
        all(value_dtype(index) in (torch.int64, torch.int32) for index in given.values()), "a mask as index"
    )
    axes = list(given)
    if len(axes) == 1:
        return g.op("Gather", x, given[axes[0]], dims=target.dims, axis=axes[0])
    # GatherND expects the indexed axes first, and their indices as the columns of one tensor.
    rank = len(value_dims(x))
    others = [axis for axis in range(rank) if axis not in given]
    num_selected = len(target.dims) - len(others)
    # If the indexed axes are adjacent, ATen puts the selected dims in their place, else first.
    at = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    selected = target.dims[at : at + num_selected]
    shape = shape_value(g, target, selected, *given.values())
    columns: list[ir.Value] = []
    for index in given.values():
        wide = g.cast(index, torch.int64)
        if value_dims(wide) != selected:
            wide = g.op("Expand", wide, shape, dims=selected)
        columns.append(g.op("Unsqueeze", wide, g.ints([num_selected]), dims=(*selected, 1)))
    stacked = g.op("Concat", *columns, dims=(*selected, len(columns)), axis=num_selected)
    first = transpose(g, x, [*axes, *others])
    kept = tuple(value_dims(x)[axis] for axis in others)
    found = g.op("GatherND", first, stacked, dtype=target.dtype, dims=(*selected, *kept))
    if at == 0:
        return found
    before = range(num_selected, num_selected + at)
    after = range(num_selected + at, len(target.dims))
    return transpose(g, found, [*before, *range(num_selected), *after])


@converts("GatherND")
def _lower_gather_nd(emitter: Emitter, call: OpCall) -> Entry:
    x, indices = call.x(0), emitter.cast(call.x(1), torch.int64)
    batch = call.attr("batch_dims", 0)
    rank = emitter.rank(indices)
    picks: list[fx.Node] = []
    for axis in range(batch):
        line = emitter.op(aten.arange.default, emitter.dim(x, axis), dtype=torch.int64, device=emitter.device)
        ones = [1] * (rank - 2 - axis)
        picks.append(emitter.op(aten.reshape.default, line, [-1, *ones]))
    for column in range(emitter.static_dim(indices, -1)):
        picks.append(emitter.op(aten.select.int, indices, -1, column))
    return emitter.op(aten.index.Tensor, x, picks)


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@converts("ScatterND")
def _lower_scatter_nd(emitter: Emitter, call: OpCall) -> Entry:
    x, indices, updates = call.x(0), emitter.cast(call.x(1), torch.int64), call.x(2)
    columns = emitter.static_dim(indices, -1)
    picks = [emitter.op(aten.select.int, indices, -1, column) for column in range(columns)]
    reduction = call.attr("reduction", "none")
    if reduction in ("none", "add"):
        return emitter.op(aten.index_put.default, x, picks, updates, reduction == "add")
    # Flatten the indexed dimensions into one and reduce along it.
    shape = emitter.shape(x)
    rows, rest = emitter.prod(shape[:columns]), emitter.prod(shape[columns:])
    flat: fx.Node | None = None
    for pick, size in zip(picks, shape[:columns], strict=True):
        pick = _from_front(emitter, pick, size)
        if flat is not None:
            pick = emitter.op(aten.add.Tensor, emitter.op(aten.mul.Tensor, flat, size), pick)
        flat = pick
    if flat is None:
        raise call.unsupported("no index columns")
    target = emitter.op(aten.reshape.default, x, [rows, rest])
    source = emitter.op(aten.reshape.default, updates, [-1, rest])
    places = emitter.op(aten.reshape.default, flat, [-1])
    name = call.choice("reduction", "none", _REDUCTIONS)
    places = emitter.op(aten.expand.default, emitter.op(aten.unsqueeze.default, places, 1), [-1, rest])
    result = emitter.op(aten.scatter_reduce.two, target, 0, places, source, name, include_self=True)
    return emitter.op(aten.reshape.default, result, shape)


@converts("OneHot")
def _lower_one_hot(emitter: Emitter, call: OpCall) -> Entry:
    indices, values = emitter.cast(call.x(0), torch.int64), call.x(2)
    depth = call.number(1) if not isinstance(call.entry(1), fx.Node) else emitter.ints(call.entry(1))[0]
    if isinstance(depth, float):
        depth = int(depth)
    rank = emitter.rank(indices) + 1
    axis = normal_axis(call.attr("axis", -1), rank)
    line = emitter.op(aten.arange.default, depth, dtype=torch.int64, device=emitter.device)
    line = emitter.op(aten.reshape.default, line, [-1] + [1] * (rank - 1 - axis))
    wrapped = emitter.op(aten.add.Tensor, indices, depth)
    wrapped = emitter.op(aten.where.self, emitter.op(aten.lt.Scalar, indices, 0), wrapped, indices)
    hot = emitter.op(aten.eq.Tensor, emitter.op(aten.unsqueeze.default, wrapped, axis), line)
    off, on = (emitter.op(aten.select.int, values, 0, index) for index in range(2))
    return emitter.op(aten.where.self, hot, on, off)


@converts("NonZero")
def _lower_non_zero(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.op(aten.permute.default, emitter.op(aten.nonzero.default, call.x(0)), [1, 0])


@converts("Compress")
def _lower_compress(emitter: Emitter, call: OpCall) -> Entry:
    x, condition = call.x(0), call.x(1)
    axis = call.attr("axis")
    if axis is None:
        x, axis = emitter.op(aten.reshape.default, x, [-1]), 0
    axis = normal_axis(axis, emitter.rank(x))
    places = emitter.op(aten.nonzero.default, condition)
    places = emitter.op(aten.reshape.default, places, [-1])
    return emitter.op(aten.index_select.default, x, axis, places)


@converts("ReverseSequence")
def _lower_reverse_sequence(emitter: Emitter, call: OpCall) -> Entry:
    x, lengths = call.x(0), emitter.cast(call.x(1), torch.int64)
    time, batch = call.attr("time_axis", 0), call.attr("batch_axis", 1)
    rank = emitter.rank(x)
    steps = emitter.op(aten.arange.default, emitter.dim(x, time), dtype=torch.int64, device=emitter.device)
    along_time = [1] * rank
    along_time[time] = -1
    along_batch = [1] * rank
    along_batch[batch] = -1
    steps = emitter.op(aten.reshape.default, steps, along_time)
    ends = emitter.op(aten.reshape.default, lengths, along_batch)
    mirrored = emitter.op(
        aten.sub.Tensor, emitter.op(aten.sub.Tensor, ends, steps), emitter.scalar(1, torch.int64)
    )
    places = emitter.op(aten.where.self, emitter.op(aten.lt.Tensor, steps, ends), mirrored, steps)
    places = emitter.op(aten.expand.default, places, emitter.shape(x))
    return emitter.op(aten.gather.default, x, time, places)
