"""Direct translations of indexing: gather, scatter, advanced indexing."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from torchrlopt.capture.builder import GraphBuilder
from torchrlopt.capture.onnx_types import value_dims, value_dtype
from torchrlopt.capture.translate.layout import transpose
from torchrlopt.capture.translate.table import Target, normal_axis, require, shape_value, translation


@translation("embedding.default")
def _embedding(g: GraphBuilder, target: Target, weight: ir.Value, ids: ir.Value, *options: Any) -> ir.Value:
    return g.op("Gather", weight, ids, dims=target.dims, axis=0)


@translation("index_select.default")
def _index_select(g: GraphBuilder, target: Target, x: ir.Value, axis: int, index: ir.Value) -> ir.Value:
    require(bool(value_dims(x)) and len(value_dims(index)) == 1, "index_select on scalars")
    return g.op("Gather", x, index, dims=target.dims, axis=normal_axis(axis, len(value_dims(x))))


@translation("gather.default")
def _gather(
    g: GraphBuilder, target: Target, x: ir.Value, axis: int, index: ir.Value, sparse: bool
) -> ir.Value:
    rank = len(value_dims(x))
    require(rank > 0 and len(value_dims(index)) == rank, "gather on scalars")
    return g.op("GatherElements", x, index, dims=target.dims, axis=normal_axis(axis, rank))


@translation("scatter.src")
def _scatter(
    g: GraphBuilder, target: Target, x: ir.Value, axis: int, index: ir.Value, source: ir.Value
) -> ir.Value:
    return _scattered(g, target, x, axis, index, source, None)


@translation("scatter_add.default")
def _scatter_add(
    g: GraphBuilder, target: Target, x: ir.Value, axis: int, index: ir.Value, source: ir.Value
) -> ir.Value:
    return _scattered(g, target, x, axis, index, source, "add")


def _scattered(
    g: GraphBuilder,
    target: Target,
    x: ir.Value,
    axis: int,
    index: ir.Value,
    source: ir.Value,
    how: str | None,
) -> ir.Value:
    rank = len(value_dims(x))
    # ATen reads only the part of the source that the index covers.
    require(rank > 0 and value_dims(source) == value_dims(index), "scatter of a part of the source")
    at = normal_axis(axis, rank)
    return g.op("ScatterElements", x, index, source, dims=target.dims, axis=at, reduction=how)


@translation("index.Tensor", "_unsafe_index.Tensor")
def _index(g: GraphBuilder, target: Target, x: ir.Value, indices: list[ir.Value | None]) -> ir.Value:
    given = {axis: index for axis, index in enumerate(indices) if index is not None}
    require(
        all(value_dtype(index) in (torch.int64, torch.int32) for index in given.values()), "a mask as index"
    )
    axes = list(given)
    if len(axes) == 1:
        return g.op("Gather", x, given[axes[0]], dims=target.dims, axis=axes[0])
    # GatherND takes the indexed axes first, and their indices as the columns of one tensor.
    rank = len(value_dims(x))
    others = [axis for axis in range(rank) if axis not in given]
    num_selected = len(target.dims) - len(others)
    # ATen puts the selected dims where the indexed axes were if those are neighbours, else first.
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
