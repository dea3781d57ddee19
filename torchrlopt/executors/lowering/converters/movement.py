"""Data movement: views, joins, cuts and padding."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.lowering.converters.conv_pool import interleaved
from torchrlopt.executors.lowering.converters.emitter import (
    Emitter,
    Entry,
    Ints,
    SymInt,
    aten,
    is_static,
    normal_axis,
)
from torchrlopt.executors.lowering.converters.table import OpCall, Result, converts

_INT64_MAX = 2**63 - 1


@converts("Reshape")
def _reshape(emitter: Emitter, call: OpCall) -> Entry:
    sizes = emitter.ints(call.entry(1))
    x = call.x(0)
    if call.attr("allowzero", 0):
        if -1 in sizes and 0 in sizes:
            raise call.unsupported("both 0 and -1 under allowzero")
        return emitter.op(aten.reshape.default, x, sizes)
    if not is_static(sizes) and emitter.known_ints(call.entry(1)) is None:
        # A zero that is only seen at run time would mean "copy"; the declared output type has the sizes.
        sizes = [_copied(emitter, x, size, index) for index, size in enumerate(sizes)]
        return emitter.op(aten.reshape.default, x, sizes)
    return emitter.op(
        aten.reshape.default,
        x,
        [emitter.dim(x, index) if size == 0 else size for index, size in enumerate(sizes)],
    )


def _copied(emitter: Emitter, x: fx.Node, size: SymInt, index: int) -> SymInt:
    """`size`, or the input's own where it is 0 at run time: size + (size == 0) * own."""
    if isinstance(size, int) or index >= emitter.rank(x):
        return size
    is_zero = emitter.op(operator.eq, size, 0)
    return emitter.add(size, emitter.op(operator.mul, is_zero, emitter.dim(x, index)))


@converts("Flatten")
def _flatten(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    shape = emitter.shape(x)
    axis = call.attr("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    sizes = [emitter.prod(shape[:axis]), emitter.prod(shape[axis:])]
    return emitter.op(aten.reshape.default, x, sizes)


def axes_of(emitter: Emitter, call: OpCall) -> list[int] | None:
    """The axes, an attribute in old opsets and the second input in new ones; None if absent."""
    attribute = call.attr("axes")
    if attribute is not None:
        return list(attribute)
    entry = call.maybe(1)
    return None if entry is None else emitter.const_ints(entry, "axes")


@converts("Squeeze")
def _squeeze(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    axes = axes_of(emitter, call)
    if axes is None:
        axes = [index for index, size in enumerate(emitter.shape(x)) if size == 1]
    drop = {normal_axis(axis, emitter.rank(x)) for axis in axes}
    return emitter.op(aten.squeeze.dims, x, sorted(drop))


@converts("Unsqueeze")
def _unsqueeze(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    axes = axes_of(emitter, call)
    if axes is None:
        raise call.unsupported("no axes")
    rank = emitter.rank(x) + len(axes)
    for axis in sorted(normal_axis(axis, rank) for axis in axes):
        x = emitter.op(aten.unsqueeze.default, x, axis)
    return x


@converts("Transpose")
def _transpose(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    perm = call.attr("perm")
    return emitter.op(
        aten.permute.default, x, list(perm if perm is not None else reversed(range(emitter.rank(x))))
    )


@converts("Expand")
def _expand(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    sizes = emitter.ints(call.entry(1))
    rank = max(len(sizes), emitter.rank(x))
    own: list[SymInt] = [*[1] * (rank - emitter.rank(x)), *emitter.shape(x)]
    asked: list[SymInt] = [*[1] * (rank - len(sizes)), *sizes]
    # Broadcasting goes both ways: a 1 in the requested shape keeps the input's size.
    merged = [-1 if index >= rank - emitter.rank(x) and a == 1 else a for index, a in enumerate(asked)]
    if not is_static(asked) and emitter.known_ints(call.entry(1)) is None:
        template = emitter.op(aten.new_empty.default, x, asked)
        return emitter.item(emitter.op(aten.broadcast_tensors.default, [x, template]), 0)
    merged = [o if a == -1 else _wider(o, a) for o, a in zip(own, merged, strict=True)]
    return emitter.op(aten.expand.default, x, merged)


def _wider(own: SymInt, asked: SymInt) -> SymInt:
    """The broadcast of an input's size with a requested one that is not the number 1."""
    if isinstance(own, int) and own != 1:
        return own
    return asked


@converts("Concat")
def _concat(emitter: Emitter, call: OpCall) -> Entry:
    nodes = call.all_x()
    axis = call.attr("axis", 1)
    # torch would skip an empty 1-D operand silently; the ranks agree in a valid model.
    return nodes[0] if len(nodes) == 1 else emitter.op(aten.cat.default, nodes, axis)


@converts("Split")
def _split(emitter: Emitter, call: OpCall) -> Result:
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


@converts("Slice")
def _slice(emitter: Emitter, call: OpCall) -> Entry:
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
        # torch counts and clamps negative and oversized bounds as ONNX does.
        if isinstance(start, int) and start == 0 and isinstance(end, int) and end >= _INT64_MAX and step == 1:
            return x
        return emitter.op(aten.slice.Tensor, x, axis, start, end, step)
    if not isinstance(start, int) or not isinstance(end, int):
        raise call.unsupported("a negative step and bounds known at run time only")
    size = emitter.static_dim(x, axis)
    picks = list(range(size))[_bound(start, size, size - 1) : None : step] if size else []
    last = end + size if end < 0 else end
    last = max(last, -1) if end < 0 else min(last, size - 1)
    picks = [index for index in picks if index > last]
    return emitter.op(
        aten.index_select.default, x, axis, emitter.constant(torch.tensor(picks, dtype=torch.int64))
    )


def _bound(start: int, size: int, largest: int) -> int:
    """A start counted from the front and clamped into [0, largest]."""
    start = start + size if start < 0 else start
    return min(max(start, 0), largest)


@converts("Tile")
def _tile(emitter: Emitter, call: OpCall) -> Entry:
    return emitter.op(aten.repeat.default, call.x(0), emitter.ints(call.entry(1)))


@converts("Pad")
def _pad(emitter: Emitter, call: OpCall) -> Entry:
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
    # The fill is a tensor: pad data and a mask, then choose.
    inside = emitter.op(aten.ones_like.default, x, dtype=torch.bool)
    padded = emitter.op(aten.constant_pad_nd.default, x, widths, 0)
    mask = emitter.op(aten.constant_pad_nd.default, inside, widths, 0)
    scalar = emitter.op(aten.reshape.default, call.x(2), [])
    return emitter.op(aten.where.self, mask, padded, scalar)


def _pad_by_index(
    emitter: Emitter, call: OpCall, x: fx.Node, mode: str, begins: list[SymInt], ends: list[SymInt]
) -> fx.Node:
    """reflect, edge and wrap: along each axis the padded tensor is a selection of the input."""
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


@converts("DepthToSpace")
def _depth_to_space(emitter: Emitter, call: OpCall) -> Entry:
    x, block = call.x(0), call.required("blocksize")
    n, c, h, w = emitter.shape(x)
    depth = emitter.floordiv(c, block * block)
    if call.attr("mode", "DCR") == "DCR":
        split, order = [n, block, block, depth, h, w], [0, 3, 4, 1, 5, 2]
    else:
        split, order = [n, depth, block, block, h, w], [0, 1, 4, 2, 5, 3]
    parts = emitter.op(aten.permute.default, emitter.op(aten.reshape.default, x, split), order)
    return emitter.op(aten.reshape.default, parts, [n, depth, emitter.mul(h, block), emitter.mul(w, block)])


@converts("SpaceToDepth")
def _space_to_depth(emitter: Emitter, call: OpCall) -> Entry:
    x, block = call.x(0), call.required("blocksize")
    n, c, h, w = emitter.shape(x)
    rows, columns = emitter.floordiv(h, block), emitter.floordiv(w, block)
    parts = emitter.op(aten.reshape.default, x, [n, c, rows, block, columns, block])
    order = [0, 3, 5, 1, 2, 4] if call.attr("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    parts = emitter.op(aten.permute.default, parts, order)
    return emitter.op(aten.reshape.default, parts, [n, emitter.mul(c, block * block), rows, columns])


@converts("Trilu")
def _trilu(emitter: Emitter, call: OpCall) -> Entry:
    diagonal = call.number(1) if call.maybe(1) is not None else 0
    target = aten.triu.default if call.attr("upper", 1) else aten.tril.default
    return emitter.op(target, call.x(0), diagonal)


@converts("CenterCropPad")
def _center_crop_pad(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    rank = emitter.rank(x)
    axes = call.attr("axes") or range(rank)
    for axis, target in zip(axes, emitter.const_ints(call.entry(1), "shape"), strict=True):
        axis = normal_axis(axis, rank)
        size = emitter.static_dim(x, axis)
        if target < size:
            start = (size - target) // 2
            x = emitter.op(aten.slice.Tensor, x, axis, start, start + target)
        elif target > size:
            begin = (target - size) // 2
            widths = [0] * (2 * (rank - 1 - axis)) + [begin, target - size - begin]
            x = emitter.op(aten.constant_pad_nd.default, x, widths, 0)
    return x
