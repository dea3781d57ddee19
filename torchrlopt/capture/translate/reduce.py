"""Direct translations of reductions, cumulative sums and selection by order."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from torchrlopt.capture.builder import GraphBuilder
from torchrlopt.capture.onnx_types import Dim, Dims, value_dims, value_dtype
from torchrlopt.capture.translate.table import (
    SymScalar,
    Target,
    normal_axes,
    normal_axis,
    require,
    static_int,
    translation,
)


def reduce(
    g: GraphBuilder, target: Target, op_type: str, x: ir.Value, axes: object, keepdims: bool
) -> ir.Value:
    """Emits a Reduce operator over the given axes, over all of them for None or an empty list."""
    found = normal_axes(axes, len(value_dims(x)))
    x = g.cast(x, target.dtype)
    if not found:
        # ONNX cannot reduce a 0-d tensor; every reduction here is the identity on one element.
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


def _register(op_type: str, over_all: str, over_axes: str) -> None:
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


_register("ReduceSum", "sum.default", "sum.dim_IntList")
_register("ReduceMean", "mean.default", "mean.dim")
_register("ReduceProd", "prod.default", "prod.dim_int")
_register("ReduceMax", "max.default", "amax.default")
_register("ReduceMin", "min.default", "amin.default")


@translation("logsumexp.default")
def _logsumexp(g: GraphBuilder, target: Target, x: ir.Value, axes: object, keepdims: bool) -> ir.Value:
    return reduce(g, target, "ReduceLogSumExp", x, axes, keepdims)


@translation("linalg_vector_norm.default")
def _vector_norm(
    g: GraphBuilder, target: Target, x: ir.Value, order: Any, axes: object, keepdims: bool, dtype: object
) -> ir.Value:
    require(order in (1, 2), f"a norm of order {order}")
    return reduce(g, target, f"ReduceL{int(order)}", x, axes, keepdims)


@translation("max.dim", "min.dim")
def _extreme_of_axis(g: GraphBuilder, target: Target, x: ir.Value, axis: int, keepdims: bool) -> list[Any]:
    require(value_dtype(x) != torch.bool and bool(value_dims(x)), "an extreme of bools or of a scalar")
    name = "Max" if str(target.node.target).startswith("aten.max") else "Min"
    at = normal_axis(axis, len(value_dims(x)))
    values = reduce(g, target, f"Reduce{name}", x, [at], keepdims) if 0 in target.used else None
    indices = None
    if 1 in target.used:
        indices = g.op(f"Arg{name}", x, dtype=torch.int64, dims=target.dims, axis=at, keepdims=int(keepdims))
    return [values, indices]


@translation("argmax.default", "argmin.default")
def _arg_extreme(g: GraphBuilder, target: Target, x: ir.Value, axis: int | None, keepdims: bool) -> ir.Value:
    name = "ArgMax" if str(target.node.target).startswith("aten.argmax") else "ArgMin"
    rank = len(value_dims(x))
    require(value_dtype(x) != torch.bool and rank > 0, "an extreme of bools or of a scalar")
    if axis is None:
        require(not keepdims, "argmax of all axes with keepdims")
        flat = g.op("Reshape", x, g.ints([-1]), dims=("?",))
        return g.op(name, flat, dtype=torch.int64, dims=(), axis=0, keepdims=0)
    at = normal_axis(axis, rank)
    return g.op(name, x, dtype=torch.int64, dims=target.dims, axis=at, keepdims=int(keepdims))


@translation("var.correction")
def _var(
    g: GraphBuilder, target: Target, x: ir.Value, axes: object, correction: Any, keepdims: bool
) -> ir.Value:
    return _variance(g, target, x, axes, correction, keepdims)[0]


@translation("std.correction")
def _std(
    g: GraphBuilder, target: Target, x: ir.Value, axes: object, correction: Any, keepdims: bool
) -> ir.Value:
    return g.op("Sqrt", _variance(g, target, x, axes, correction, keepdims)[0])


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
    found = normal_axes(axes, len(dims))
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


@translation("cumsum.default")
def _cumsum(g: GraphBuilder, target: Target, x: ir.Value, axis: int, dtype: object) -> ir.Value:
    rank = len(target.dims)
    require(rank > 0, "a cumulative sum of a scalar")
    return g.op("CumSum", g.cast(x, target.dtype), g.scalar(normal_axis(axis, rank), torch.int64))


@translation("topk.default")
def _topk(
    g: GraphBuilder, target: Target, x: ir.Value, k: Any, axis: int, largest: bool, ordered: bool
) -> list[ir.Value]:
    rank = len(target.dims)
    require(rank > 0 and value_dtype(x) != torch.bool, "topk of a scalar or of bools")
    types = [known for known in target.types if known is not None]
    count = g.op("Reshape", k.value, g.ints([1]), dims=(1,)) if isinstance(k, SymScalar) else g.ints([k])
    at = normal_axis(axis, rank)
    return g.op_many("TopK", [x, count], types, axis=at, largest=int(largest), sorted=int(ordered))
