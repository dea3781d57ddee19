"""Reductions, argmin and argmax, cumulative sums and products, top-k."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from torchrlopt.ops.builder import GraphBuilder
from torchrlopt.ops.emitter import Emitter, Entry, aten, normal_axis
from torchrlopt.ops.onnx_types import UNSIGNED_WIDE, Dim, Dims, value_dims, value_dtype
from torchrlopt.ops.shape import axes_of
from torchrlopt.ops.to_aten import OpCall, Result, converts
from torchrlopt.ops.to_onnx import (
    SymScalar,
    Target,
    non_negative_axes,
    non_negative_axis,
    require,
    static_int,
    translation,
)

ROWS = {
    "ReduceSum": ("sum.default", "sum.dim_IntList"),
    "ReduceMean": ("mean.default", "mean.dim"),
    "ReduceProd": ("prod.default", "prod.dim_int"),
    "ReduceMax": ("max.default", "amax.default"),
    "ReduceMin": ("min.default", "amin.default"),
}
"""One-to-one reductions by ONNX name: the ATen overload over all elements, and the one over axes."""


def reduce(
    g: GraphBuilder, target: Target, op_type: str, x: ir.Value, axes: object, keepdims: bool
) -> ir.Value:
    """Emits a Reduce operator over the given axes; None or an empty list means all axes."""
    found = non_negative_axes(axes, len(value_dims(x)))
    x = g.cast(x, target.dtype)
    if not found:
        # ONNX cannot reduce a 0-d tensor. On a single element every reduction here is the identity.
        return g.identity(x)
    dims = reduced(value_dims(x), found, keepdims)
    return g.op(op_type, x, g.ints(found), dims=dims, keepdims=int(keepdims))


def reduced(dims: Dims, axes: list[int], keepdims: bool) -> Dims:
    """Returns the dims after a reduction over non-negative axes."""
    kept: list[Dim] = []
    for axis, dim in enumerate(dims):
        if axis not in axes:
            kept.append(dim)
        elif keepdims:
            kept.append(1)
    return tuple(kept)


def _enter(op_type: str, over_all: str, over_axes: str) -> None:
    @translation(over_all)
    def all_axes(g: GraphBuilder, target: Target, x: ir.Value, *options: Any) -> ir.Value:
        require(target.dtype != torch.bool, f"{op_type} of bools")
        return reduce(g, target, op_type, x, None, keepdims=False)

    @translation(over_axes)
    def some_axes(
        g: GraphBuilder, target: Target, x: ir.Value, axes: object, keepdims: bool, *options: Any
    ) -> ir.Value:
        require(target.dtype != torch.bool, f"{op_type} of bools")
        return reduce(g, target, op_type, x, axes, keepdims)


for _name, _overloads in ROWS.items():
    _enter(_name, *_overloads)


def _dims(emitter: Emitter, call: OpCall, x: fx.Node) -> list[int] | None:
    """The reduced axes (default: all); None if the operator is a no-op."""
    axes = axes_of(emitter, call)
    if not axes:
        if call.attr("noop_with_empty_axes", 0):
            return None
        return list(range(emitter.rank(x)))
    return sorted(normal_axis(axis, emitter.rank(x)) for axis in axes)


def _sum(emitter: Emitter, x: fx.Node, dims: list[int] | None, keep: bool) -> fx.Node:
    """Sum in the dtype of `x`; torch would widen integers to int64."""
    if dims is None or not dims:
        return x
    return emitter.op(aten.sum.dim_IntList, x, dims, keep, dtype=emitter.dtype(x))


def _wide(emitter: Emitter, call: OpCall) -> tuple[fx.Node, torch.dtype]:
    """The operand and its dtype; the operand as int64 if torch lacks kernels for its dtype."""
    x = call.x(0)
    dtype = emitter.dtype(x)
    if dtype == torch.uint64:
        raise call.unsupported("uint64")
    return (emitter.cast(x, torch.int64) if dtype in UNSIGNED_WIDE else x), dtype


@translation("logsumexp.default")
def _logsumexp(g: GraphBuilder, target: Target, x: ir.Value, axes: object, keepdims: bool) -> ir.Value:
    return reduce(g, target, "ReduceLogSumExp", x, axes, keepdims)


@converts("ReduceLogSumExp")
def _lower_reduce_log_sum_exp(emitter: Emitter, call: OpCall) -> Entry:
    x, dtype = _wide(emitter, call)
    dims, keep = _dims(emitter, call, x), bool(call.attr("keepdims", 1))
    if not dims:
        return call.entry(0)
    if not dtype.is_floating_point:
        raise call.unsupported("integers")
    return emitter.op(aten.logsumexp.default, x, dims, keep)


@translation("linalg_vector_norm.default")
def _vector_norm(
    g: GraphBuilder, target: Target, x: ir.Value, order: Any, axes: object, keepdims: bool, dtype: object
) -> ir.Value:
    require(order in (1, 2), f"a norm of order {order}")
    return reduce(g, target, f"ReduceL{int(order)}", x, axes, keepdims)


@translation("max.dim", "min.dim")
def _extreme_of_axis(g: GraphBuilder, target: Target, x: ir.Value, axis: int, keepdims: bool) -> list[Any]:
    require(value_dtype(x) != torch.bool and bool(value_dims(x)), "an extreme of bools or of a scalar")
    name = target.opname.capitalize()
    at = non_negative_axis(axis, len(value_dims(x)))
    values = reduce(g, target, f"Reduce{name}", x, [at], keepdims) if 0 in target.used else None
    indices = None
    if 1 in target.used:
        indices = g.op(f"Arg{name}", x, dtype=torch.int64, dims=target.dims, axis=at, keepdims=int(keepdims))
    return [values, indices]


@translation("argmax.default", "argmin.default")
def _arg_extreme(g: GraphBuilder, target: Target, x: ir.Value, axis: int | None, keepdims: bool) -> ir.Value:
    name = "ArgMax" if target.opname == "argmax" else "ArgMin"
    rank = len(value_dims(x))
    require(value_dtype(x) != torch.bool and rank > 0, "an extreme of bools or of a scalar")
    if axis is None:
        require(not keepdims, "argmax of all axes with keepdims")
        flat = g.op("Reshape", x, g.ints([-1]), dims=("?",))
        return g.op(name, flat, dtype=torch.int64, dims=(), axis=0, keepdims=0)
    at = non_negative_axis(axis, rank)
    return g.op(name, x, dtype=torch.int64, dims=target.dims, axis=at, keepdims=int(keepdims))


@converts("ArgMax", "ArgMin")
def _lower_arg_extremum(emitter: Emitter, call: OpCall) -> Entry:
    x, _ = _wide(emitter, call)
    axis, keep = normal_axis(call.attr("axis", 0), emitter.rank(x)), bool(call.attr("keepdims", 1))
    target = aten.argmax.default if call.op_type == "ArgMax" else aten.argmin.default
    if not call.attr("select_last_index", 0):
        return emitter.op(target, x, axis, keep)
    # The last occurrence is the first one in the flipped tensor.
    first = emitter.op(target, emitter.op(aten.flip.default, x, [axis]), axis, keep)
    last = emitter.sub(emitter.dim(x, axis), 1)
    return emitter.op(aten.add.Tensor, emitter.op(aten.neg.default, first), last)


@translation("var.correction", "std.correction")
def _spread(
    g: GraphBuilder, target: Target, x: ir.Value, axes: object, correction: Any, keepdims: bool
) -> ir.Value:
    variance, _ = _variance(g, target, x, axes, correction, keepdims)
    return variance if target.opname == "var" else g.op("Sqrt", variance)


@translation("var_mean.correction")
def _var_mean(
    g: GraphBuilder, target: Target, x: ir.Value, axes: object, correction: Any, keepdims: bool
) -> list[ir.Value | None]:
    variance, mean = _variance(g, target, x, axes, correction, keepdims)
    if 1 in target.used and not keepdims:
        mean = reduce(g, target, "ReduceMean", x, axes, keepdims=False)
    return [variance, mean if 1 in target.used else None]


def _variance(
    g: GraphBuilder, target: Target, x: ir.Value, axes: object, correction: Any, keepdims: bool
) -> tuple[ir.Value, ir.Value]:
    dims = value_dims(x)
    found = non_negative_axes(axes, len(dims))
    count = 1
    for axis in found:
        count *= static_int(dims[axis])
    offset = 1 if correction is None else correction
    require(bool(found) and count > offset, "a variance of too few elements")
    mean = reduce(g, target, "ReduceMean", x, found, keepdims=True)
    centred = g.op("Sub", x, mean, dims=dims)
    squared = g.op("Mul", centred, centred)
    variance = reduce(g, target, "ReduceMean", squared, found, keepdims)
    if offset:
        variance = g.op("Mul", variance, g.scalar(count / (count - offset), target.dtype))
    return variance, mean


@converts("ReduceMean")
def _lower_reduce_mean(emitter: Emitter, call: OpCall) -> Entry:
    x, dtype = _wide(emitter, call)
    dims, keep = _dims(emitter, call, x), bool(call.attr("keepdims", 1))
    if not dims:
        return call.entry(0)
    if dtype.is_floating_point:
        return emitter.op(aten.mean.dim, x, dims, keep)
    count = emitter.prod([emitter.dim(x, axis) for axis in dims])
    total = _sum(emitter, emitter.cast(x, torch.int64), dims, keep)
    return emitter.cast(emitter.op(aten.div.Tensor_mode, total, count, rounding_mode="trunc"), dtype)


@translation("cumsum.default")
def _cumsum(g: GraphBuilder, target: Target, x: ir.Value, axis: int, dtype: object) -> ir.Value:
    rank = len(target.dims)
    require(rank > 0, "a cumulative sum of a scalar")
    return g.op("CumSum", g.cast(x, target.dtype), g.scalar(non_negative_axis(axis, rank), torch.int64))


@converts("CumSum", "CumProd")
def _lower_running(emitter: Emitter, call: OpCall) -> Entry:
    x, dtype = _wide(emitter, call)
    axis = call.number(1)
    if axis is None:
        raise call.unsupported("no axis")
    axis = normal_axis(int(axis), emitter.rank(x))
    is_sum = call.op_type == "CumSum"
    target: Any = aten.cumsum.default if is_sum else aten.cumprod.default
    reverse = call.attr("reverse", 0)
    if reverse:
        x = emitter.op(aten.flip.default, x, [axis])
    if call.attr("exclusive", 0):
        # Shift by one: drop the last element and prepend the neutral one.
        behind = 2 * (emitter.rank(x) - 1 - axis)
        x = emitter.op(aten.constant_pad_nd.default, x, [0] * behind + [1, -1], 0 if is_sum else 1)
    result = emitter.op(target, x, axis, dtype=emitter.dtype(x))
    if reverse:
        result = emitter.op(aten.flip.default, result, [axis])
    return emitter.cast(result, dtype)


@translation("topk.default")
def _topk(
    g: GraphBuilder, target: Target, x: ir.Value, k: Any, axis: int, largest: bool, ordered: bool
) -> list[ir.Value]:
    rank = len(target.dims)
    require(rank > 0 and value_dtype(x) != torch.bool, "topk of a scalar or of bools")
    types = [known for known in target.types if known is not None]
    count = g.op("Reshape", k.value, g.ints([1]), dims=(1,)) if isinstance(k, SymScalar) else g.ints([k])
    at = non_negative_axis(axis, rank)
    return g.op_many("TopK", [x, count], types, axis=at, largest=int(largest), sorted=int(ordered))


@converts("TopK")
def _lower_top_k(emitter: Emitter, call: OpCall) -> Result:
    x, dtype = _wide(emitter, call)
    k = emitter.ints(call.entry(1))[0]
    axis = normal_axis(call.attr("axis", -1), emitter.rank(x))
    largest = bool(call.attr("largest", 1))
    # ONNX requires the smallest index among equal elements; a stable sort gives it, topk does not promise it.
    ordered = emitter.op(aten.sort.stable, x, stable=True, dim=axis, descending=largest)
    values, indices = (
        emitter.op(aten.slice.Tensor, emitter.item(ordered, index), axis, 0, k) for index in range(2)
    )
    return emitter.cast(values, dtype), indices


@converts("ReduceSum", "ReduceL1", "ReduceSumSquare", "ReduceL2", "ReduceLogSum")
def _lower_reduce_sum(emitter: Emitter, call: OpCall) -> Entry:
    x, dtype = _wide(emitter, call)
    dims = _dims(emitter, call, x)
    keep = bool(call.attr("keepdims", 1))
    if call.op_type == "ReduceL1":
        x = emitter.op(aten.abs.default, x)
    elif call.op_type in ("ReduceSumSquare", "ReduceL2"):
        x = emitter.op(aten.mul.Tensor, x, x)
    total = _sum(emitter, x, dims, keep)
    if call.op_type == "ReduceL2":
        total = emitter.op(aten.sqrt.default, total)
    elif call.op_type == "ReduceLogSum":
        total = emitter.op(aten.log.default, total)
    return emitter.cast(total, dtype)


@converts("ReduceProd")
def _lower_reduce_prod(emitter: Emitter, call: OpCall) -> Entry:
    x, dtype = _wide(emitter, call)
    dims, keep = _dims(emitter, call, x), bool(call.attr("keepdims", 1))
    for axis in reversed(dims or []):
        x = emitter.op(aten.prod.dim_int, x, axis, keep, dtype=emitter.dtype(x))
    return emitter.cast(x, dtype)


@converts("ReduceMax", "ReduceMin")
def _lower_reduce_extremum(emitter: Emitter, call: OpCall) -> Entry:
    x, dtype = _wide(emitter, call)
    dims, keep = _dims(emitter, call, x), bool(call.attr("keepdims", 1))
    if not dims:
        return call.entry(0)
    largest = call.op_type == "ReduceMax"
    if any(emitter.dim(x, axis) == 0 for axis in dims):
        # Reducing an empty axis gives the neutral element; torch raises an error instead.
        worst = _extreme(dtype, not largest)
        sizes = [1 if i in dims else s for i, s in enumerate(emitter.shape(x)) if keep or i not in dims]
        return emitter.op(aten.full.default, sizes, worst, dtype=dtype, device=emitter.device)
    result = emitter.op(aten.amax.default if largest else aten.amin.default, x, dims, keep)
    return emitter.cast(result, dtype)


def _extreme(dtype: torch.dtype, largest: bool) -> float | int | bool:
    if dtype.is_floating_point:
        return float("inf") if largest else float("-inf")
    if dtype == torch.bool:
        return largest
    return torch.iinfo(dtype).max if largest else torch.iinfo(dtype).min
