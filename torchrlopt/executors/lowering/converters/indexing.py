"""Reading and writing by index."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from torchrlopt.executors.lowering.converters.emitter import Emitter, Entry, aten, normal_axis
from torchrlopt.executors.lowering.converters.table import OpCall, converts


def _from_front(emitter: Emitter, entry: Entry, size: Any, is_from_front: bool = False) -> fx.Node:
    """Indices in int64, counted from the front; only for kernels that refuse negative ones.

    Args:
        emitter: where calls go.
        entry: the indices.
        size: what negative ones are added to.
        is_from_front: whether negative ones are to be refused, as the original refuses them.
    """
    if is_from_front:
        return emitter.cast(emitter.tensor(entry), torch.int64)
    if isinstance(entry, torch.Tensor) and isinstance(size, int):
        wide = entry.to(torch.int64)
        return emitter.constant(torch.where(wide < 0, wide + size, wide))
    indices = emitter.cast(emitter.tensor(entry), torch.int64)
    shifted = emitter.op(aten.add.Tensor, indices, size)
    return emitter.op(aten.where.self, emitter.op(aten.lt.Scalar, indices, 0), shifted, indices)


@converts("Gather")
def _gather(emitter: Emitter, call: OpCall) -> Entry:
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
    # index counts negative indices from the end by itself.
    return emitter.op(aten.index.Tensor, x, [None] * axis + [indices])


def _rows(emitter: Emitter, x: fx.Node, axis: int, indices: fx.Node) -> fx.Node:
    """As `embedding` and `index_select` read, which refuse negative indices."""
    if axis == 0 and emitter.rank(x) == 2:
        return emitter.op(aten.embedding.default, x, indices)
    if emitter.rank(indices) == 1:
        return emitter.op(aten.index_select.default, x, axis, indices)
    shape = emitter.shape(x)
    flat = emitter.op(aten.reshape.default, indices, [-1])
    found = emitter.op(aten.index_select.default, x, axis, flat)
    sizes = [*shape[:axis], *emitter.shape(indices), *shape[axis + 1 :]]
    return emitter.op(aten.reshape.default, found, sizes)


@converts("GatherElements")
def _gather_elements(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    axis = normal_axis(call.attr("axis", 0), emitter.rank(x))
    indices = _from_front(emitter, call.entry(1), emitter.dim(x, axis), call.is_from_front)
    return emitter.op(aten.gather.default, x, axis, indices)


@converts("GatherND")
def _gather_nd(emitter: Emitter, call: OpCall) -> Entry:
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


@converts("ScatterElements")
def _scatter_elements(emitter: Emitter, call: OpCall) -> Entry:
    x, updates = call.x(0), call.x(2)
    axis = normal_axis(call.attr("axis", 0), emitter.rank(x))
    indices = _from_front(emitter, call.entry(1), emitter.dim(x, axis), call.is_from_front)
    reduction = call.attr("reduction", "none")
    if reduction == "none":
        return emitter.op(aten.scatter.src, x, axis, indices, updates)
    name = call.choice("reduction", "none", _REDUCTIONS)
    return emitter.op(aten.scatter_reduce.two, x, axis, indices, updates, name, include_self=True)


@converts("ScatterND")
def _scatter_nd(emitter: Emitter, call: OpCall) -> Entry:
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
def _one_hot(emitter: Emitter, call: OpCall) -> Entry:
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
def _non_zero(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.op(aten.permute.default, emitter.op(aten.nonzero.default, call.x(0)), [1, 0])


@converts("Compress")
def _compress(emitter: Emitter, call: OpCall) -> Entry:
    x, condition = call.x(0), call.x(1)
    axis = call.attr("axis")
    if axis is None:
        x, axis = emitter.op(aten.reshape.default, x, [-1]), 0
    axis = normal_axis(axis, emitter.rank(x))
    places = emitter.op(aten.nonzero.default, condition)
    places = emitter.op(aten.reshape.default, places, [-1])
    return emitter.op(aten.index_select.default, x, axis, places)


@converts("ReverseSequence")
def _reverse_sequence(emitter: Emitter, call: OpCall) -> Entry:
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


@converts("TensorScatter")
def _tensor_scatter(emitter: Emitter, call: OpCall) -> Entry:
    cache, update, starts = call.x(0), call.x(1), call.maybe_x(2)
    axis = normal_axis(call.attr("axis", -2), emitter.rank(cache))
    rank = emitter.rank(cache)
    line = emitter.op(
        aten.arange.default, emitter.dim(update, axis), dtype=torch.int64, device=emitter.device
    )
    line = emitter.op(aten.reshape.default, line, [-1] + [1] * (rank - 1 - axis))
    if starts is not None:
        first = emitter.op(aten.reshape.default, starts, [-1] + [1] * (rank - 1))
        line = emitter.op(aten.add.Tensor, line, first)
    if call.attr("mode", "linear") == "circular":
        line = emitter.op(aten.remainder.Scalar, line, emitter.dim(cache, axis))
    places = emitter.op(aten.expand.default, line, emitter.shape(update))
    return emitter.op(aten.scatter.src, cache, axis, places, update)
