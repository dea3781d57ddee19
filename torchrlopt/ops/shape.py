"""Views: the same elements with other sizes or another order of axes.

Every shape input is a constant if ONNX allows it, even with symbolic dims.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from torch import fx

from torchrlopt.ops.builder import GraphBuilder
from torchrlopt.ops.emitter import Emitter, Entry, SymInt, aten, normal_axis
from torchrlopt.ops.onnx_types import Dims, is_static, reshape_target, value_dims
from torchrlopt.ops.to_aten import OpCall, converts
from torchrlopt.ops.to_onnx import Target, non_negative_axes, require, shape_value, translation


def reshape(g: GraphBuilder, target: Target, x: ir.Value, dims: Dims) -> ir.Value:
    """Emits a Reshape of x to dims, with a constant target shape if one exists."""
    source = value_dims(x)
    if source == dims:
        return g.identity(x)
    sizes = reshape_target(source, dims)
    if sizes is None:
        require(0 not in dims, "a Reshape of an empty tensor to symbolic dims")
        return g.op("Reshape", x, shape_value(g, target, dims, x), dims=dims)
    # A literal zero means a size here, not "copy": it only appears if every dim is known.
    allow_zero = 1 if 0 in dims else None
    return g.op("Reshape", x, g.ints(sizes), dims=dims, allowzero=allow_zero)


@translation("view.default", "_unsafe_view.default", "view_copy.default", "reshape.default")
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


@translation("expand.default")
def _expand(g: GraphBuilder, target: Target, x: ir.Value, *options: object) -> ir.Value:
    source, dims = value_dims(x), target.dims
    if source == dims:
        return g.identity(x)
    # A 1 in Expand's shape keeps the input's dim, so only new dims need to be given.
    offset = len(dims) - len(source)
    wanted: Dims = tuple(
        1 if axis >= offset and isinstance(dim, str) and source[axis - offset] == dim else dim
        for axis, dim in enumerate(dims)
    )
    return g.op("Expand", x, shape_value(g, target, wanted, x), dims=dims)


@converts("Expand")
def _lower_expand(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    sizes = emitter.ints(call.entry(1))
    rank = max(len(sizes), emitter.rank(x))
    own: list[SymInt] = [*[1] * (rank - emitter.rank(x)), *emitter.shape(x)]
    requested: list[SymInt] = [*[1] * (rank - len(sizes)), *sizes]
    # Broadcasting is two-way: a 1 in the requested shape keeps the input's size.
    merged = [-1 if index >= rank - emitter.rank(x) and a == 1 else a for index, a in enumerate(requested)]
    if not is_static(requested) and emitter.known_ints(call.entry(1)) is None:
        template = emitter.op(aten.new_empty.default, x, requested)
        return emitter.item(emitter.op(aten.broadcast_tensors.default, [x, template]), 0)
    merged = [o if a == -1 else _wider(o, a) for o, a in zip(own, merged, strict=True)]
    return emitter.op(aten.expand.default, x, merged)


def _wider(own: SymInt, requested: SymInt) -> SymInt:
    """Broadcasts an input's size with a requested one that is not the number 1."""
    if isinstance(own, int) and own != 1:
        return own
    return requested


@translation("unsqueeze.default")
def _unsqueeze(g: GraphBuilder, target: Target, x: ir.Value, axis: int) -> ir.Value:
    axes = g.ints([axis % (len(value_dims(x)) + 1)])
    return g.op("Unsqueeze", x, axes, dims=target.dims)


@converts("Unsqueeze")
def _lower_unsqueeze(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    axes = axes_of(emitter, call)
    if axes is None:
        raise call.unsupported("no axes")
    rank = emitter.rank(x) + len(axes)
    for axis in sorted(normal_axis(axis, rank) for axis in axes):
        x = emitter.op(aten.unsqueeze.default, x, axis)
    return x


@translation("squeeze.default", "squeeze.dim", "squeeze.dims")
def _squeeze(g: GraphBuilder, target: Target, x: ir.Value, axes: Any = None) -> ir.Value:
    source = value_dims(x)
    chosen = (
        [] if axes == [] else non_negative_axes(axes, len(source))
    )  # None means all axes, an empty list means none
    # ATen ignores an axis whose size is not 1; ONNX rejects it.
    kept = [axis for axis in chosen if axis < len(source) and source[axis] == 1]
    if not kept:
        return g.identity(x)
    return g.op("Squeeze", x, g.ints(kept), dims=target.dims)


@converts("Squeeze")
def _lower_squeeze(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    axes = axes_of(emitter, call)
    if axes is None:
        axes = [index for index, size in enumerate(emitter.shape(x)) if size == 1]
    drop = {normal_axis(axis, emitter.rank(x)) for axis in axes}
    return emitter.op(aten.squeeze.dims, x, sorted(drop))


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
    """Emits a Transpose, or an Identity for the identity permutation."""
    if order == sorted(order):
        return g.identity(x)
    dims = value_dims(x)
    return g.op("Transpose", x, dims=tuple(dims[axis] for axis in order), perm=order)


@converts("Transpose")
def _lower_transpose(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    perm = call.attr("perm")
    return emitter.op(
        aten.permute.default, x, list(perm if perm is not None else reversed(range(emitter.rank(x))))
    )


@converts("Reshape")
def _lower_reshape(emitter: Emitter, call: OpCall) -> Entry:
    sizes = emitter.ints(call.entry(1))
    x = call.x(0)
    if call.attr("allowzero", 0):
        if -1 in sizes and 0 in sizes:
            raise call.unsupported("both 0 and -1 under allowzero")
        return emitter.op(aten.reshape.default, x, sizes)
    if not is_static(sizes) and emitter.known_ints(call.entry(1)) is None:
        # A zero only known at run time would mean "copy"; the declared output type has the sizes.
        sizes = [_copied(emitter, x, size, index) for index, size in enumerate(sizes)]
        return emitter.op(aten.reshape.default, x, sizes)
    return emitter.op(
        aten.reshape.default,
        x,
        [emitter.dim(x, index) if size == 0 else size for index, size in enumerate(sizes)],
    )


def _copied(emitter: Emitter, x: fx.Node, size: SymInt, index: int) -> SymInt:
    """`size`, or the input's own size if it is 0 at run time: size + (size == 0) * own."""
    if isinstance(size, int) or index >= emitter.rank(x):
        return size
    is_zero = emitter.op(operator.eq, size, 0)
    return emitter.add(size, emitter.op(operator.mul, is_zero, emitter.dim(x, index)))


@converts("Flatten")
def _lower_flatten(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    shape = emitter.shape(x)
    axis = call.attr("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    sizes = [emitter.prod(shape[:axis]), emitter.prod(shape[axis:])]
    return emitter.op(aten.reshape.default, x, sizes)


def axes_of(emitter: Emitter, call: OpCall) -> list[int] | None:
    """The axes: an attribute in old opsets, the second input in new ones; None if absent."""
    attribute = call.attr("axes")
    if attribute is not None:
        return list(attribute)
    entry = call.maybe(1)
    return None if entry is None else emitter.const_ints(entry, "axes")
