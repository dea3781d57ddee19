"""Reductions, extrema with positions, and running sums."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from torchrlopt.executors.lowering.converters.dtypes import UNSIGNED_WIDE
from torchrlopt.executors.lowering.converters.emitter import Emitter, Entry, aten, normal_axis
from torchrlopt.executors.lowering.converters.movement import axes_of
from torchrlopt.executors.lowering.converters.table import OpCall, Result, converts


def _dims(emitter: Emitter, call: OpCall, x: fx.Node) -> list[int] | None:
    """The reduced axes, all of them by default; None when the operator does nothing."""
    axes = axes_of(emitter, call)
    if not axes:
        if call.attr("noop_with_empty_axes", 0):
            return None
        return list(range(emitter.rank(x)))
    return sorted(normal_axis(axis, emitter.rank(x)) for axis in axes)


def _sum(emitter: Emitter, x: fx.Node, dims: list[int] | None, keep: bool) -> fx.Node:
    """Sum in the type of `x`: torch would widen integers to int64."""
    if dims is None or not dims:
        return x
    return emitter.op(aten.sum.dim_IntList, x, dims, keep, dtype=emitter.dtype(x))


def _wide(emitter: Emitter, call: OpCall) -> tuple[fx.Node, torch.dtype]:
    """The operand, in int64 where torch lacks kernels for its width, and its own type."""
    x = call.x(0)
    dtype = emitter.dtype(x)
    if dtype == torch.uint64:
        raise call.unsupported("uint64")
    return (emitter.cast(x, torch.int64) if dtype in UNSIGNED_WIDE else x), dtype


@converts("ReduceSum", "ReduceL1", "ReduceSumSquare", "ReduceL2", "ReduceLogSum")
def _reduce_sum(emitter: Emitter, call: OpCall) -> Entry:
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


@converts("ReduceMean")
def _reduce_mean(emitter: Emitter, call: OpCall) -> Entry:
    x, dtype = _wide(emitter, call)
    dims, keep = _dims(emitter, call, x), bool(call.attr("keepdims", 1))
    if not dims:
        return call.entry(0)
    if dtype.is_floating_point:
        return emitter.op(aten.mean.dim, x, dims, keep)
    count = emitter.prod([emitter.dim(x, axis) for axis in dims])
    total = _sum(emitter, emitter.cast(x, torch.int64), dims, keep)
    return emitter.cast(emitter.op(aten.div.Tensor_mode, total, count, rounding_mode="trunc"), dtype)


@converts("ReduceProd")
def _reduce_prod(emitter: Emitter, call: OpCall) -> Entry:
    x, dtype = _wide(emitter, call)
    dims, keep = _dims(emitter, call, x), bool(call.attr("keepdims", 1))
    for axis in reversed(dims or []):
        x = emitter.op(aten.prod.dim_int, x, axis, keep, dtype=emitter.dtype(x))
    return emitter.cast(x, dtype)


@converts("ReduceMax", "ReduceMin")
def _reduce_extremum(emitter: Emitter, call: OpCall) -> Entry:
    x, dtype = _wide(emitter, call)
    dims, keep = _dims(emitter, call, x), bool(call.attr("keepdims", 1))
    if not dims:
        return call.entry(0)
    largest = call.op_type == "ReduceMax"
    if any(emitter.dim(x, axis) == 0 for axis in dims):
        # The extremum of nothing is the neutral element, which torch refuses to give.
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


@converts("ReduceLogSumExp")
def _reduce_log_sum_exp(emitter: Emitter, call: OpCall) -> Entry:
    x, dtype = _wide(emitter, call)
    dims, keep = _dims(emitter, call, x), bool(call.attr("keepdims", 1))
    if not dims:
        return call.entry(0)
    if not dtype.is_floating_point:
        raise call.unsupported("integers")
    return emitter.op(aten.logsumexp.default, x, dims, keep)


@converts("ArgMax", "ArgMin")
def _arg_extremum(emitter: Emitter, call: OpCall) -> Entry:
    x, _ = _wide(emitter, call)
    axis, keep = normal_axis(call.attr("axis", 0), emitter.rank(x)), bool(call.attr("keepdims", 1))
    target = aten.argmax.default if call.op_type == "ArgMax" else aten.argmin.default
    if not call.attr("select_last_index", 0):
        return emitter.op(target, x, axis, keep)
    # The last occurrence is the first one from the other end.
    first = emitter.op(target, emitter.op(aten.flip.default, x, [axis]), axis, keep)
    last = emitter.sub(emitter.dim(x, axis), 1)
    return emitter.op(aten.add.Tensor, emitter.op(aten.neg.default, first), last)


@converts("TopK")
def _top_k(emitter: Emitter, call: OpCall) -> Result:
    x, dtype = _wide(emitter, call)
    k = emitter.ints(call.entry(1))[0]
    axis = normal_axis(call.attr("axis", -1), emitter.rank(x))
    largest = bool(call.attr("largest", 1))
    # A stable sort gives the smallest index among equals, which ONNX asks for and topk does not promise.
    ordered = emitter.op(aten.sort.stable, x, stable=True, dim=axis, descending=largest)
    values, indices = (
        emitter.op(aten.slice.Tensor, emitter.item(ordered, index), axis, 0, k) for index in range(2)
    )
    return emitter.cast(values, dtype), indices


@converts("CumSum", "CumProd")
def _running(emitter: Emitter, call: OpCall) -> Entry:
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
        # Shift by one: drop the last element, put the neutral one in front.
        behind = 2 * (emitter.rank(x) - 1 - axis)
        x = emitter.op(aten.constant_pad_nd.default, x, [0] * behind + [1, -1], 0 if is_sum else 1)
    result = emitter.op(target, x, axis, dtype=emitter.dtype(x))
    if reverse:
        result = emitter.op(aten.flip.default, result, [axis])
    return emitter.cast(result, dtype)
