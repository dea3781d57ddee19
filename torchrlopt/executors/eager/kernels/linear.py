"""Replaces products with precomputed weights by a packed, fused linear: our own or oneDNN's.

The packed call takes an input of any rank, so the reshapes around a 2-D product disappear; a bias added after
it and an activation are fused.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect, packing
from torchrlopt.executors.eager.kernels.conversions import converted, types_of
from torchrlopt.executors.eager.kernels.dtypes import KERNEL_DTYPES
from torchrlopt.executors.eager.kernels.epilogues import NONE, fused_activation
from torchrlopt.executors.eager.kernels.operators import LINEAR
from torchrlopt.executors.eager.kernels.packed_weights import PackedWeights
from torchrlopt.executors.eager.kernels.selection import insert_after, replace
from torchrlopt.executors.eager.kernels.sites import (
    REQUESTED,
    Product,
    are_for_or_packed,
    joined,
    product_at,
    rows_of,
)
from torchrlopt.executors.lowering.fx_values import static_shape, tensor_of

aten = torch.ops.aten
# With this many rows or fewer our sums are at least as fast as oneDNN, whatever the weight (`python -m
# baselines.kernels`, an AMD EPYC of Zen 5, two threads, alternating weights: 32 x 768 x 3072 take 0.67 times
# as long, 128 x 768 x 3072 0.96, and 197 x 384 x 1536 1.02).
_MANY_SUMMED_ROWS = 192
# With more rows, oneDNN's linear is as fast beyond this.
_MAX_PRODUCT_FLOP = 8.0e7
# The same limit for a number of rows that is known only at run time.
_MAX_PRODUCT_WEIGHT = 1 << 17
# On processors with a matrix unit other limits were measured, before our sums prefetched: in a network a
# larger weight comes from memory in every call, and with more than a few rows oneDNN was faster. On an Intel
# Xeon 8 x 1024 x 2048 took 304 us, and 440 with ours (twelve alternating weights, measured with a separate
# script).
_MAX_WEIGHT_IN_CACHE = 5 << 18
_FEW_ROWS = 2
# For a number that is known only at run time.
_USUAL_ROWS = 8
# With fewer rows, such a weight was not timed in the matrix unit.
_MANY_ROWS = 64


def select_linears(
    graph: fx.Graph, static: Collection[fx.Node], finite: Collection[fx.Node], is_real: bool
) -> None:
    """Replace products by packed calls where that is faster; see `selection`.

    Args:
        graph: an ATen graph.
        static: the nodes that are the same in every call.
        finite: the nodes whose values may be assumed finite.
        is_real: whether rounding may differ, which allows the matrix unit.
    """
    packed: dict[Any, fx.Node] = {}
    ours = PackedWeights(graph)
    for node in list(graph.nodes):
        site = product_at(node, static, are_for_or_packed)
        if site is None:
            continue
        wanted = _methods(site, static, is_real)
        if wanted:
            method = ours.first_that_fits(site.weight, site.bias, 1, wanted, site.is_transposed)
            if method is not None:
                rows = rows_of(graph, site, static, packed)
                _rewrite_to_indirect(graph, site, static, rows, ours, method, is_real)
        elif packing.can_pack(tensor_of(node)) and _pays(site):
            _rewrite(graph, site, rows_of(graph, site, static, packed), packed, finite)


def _sizes(site: Product) -> tuple[int | None, int, int]:
    """Rows (None if known only at run time), in features and out features."""
    shape, weight = static_shape(site.first), static_shape(site.weight)
    assert weight is not None
    rows = None if shape is None else math.prod(shape[:-1])
    in_features, out_features = reversed(weight) if site.is_transposed else weight
    return rows, in_features, out_features


def _pays(site: Product) -> bool:
    """Whether oneDNN's packed linear is faster than `addmm`."""
    rows, in_features, out_features = _sizes(site)
    known = KERNEL_DTYPES.get(site.first.meta["val"].dtype, KERNEL_DTYPES[torch.float32])
    num_rows = _USUAL_ROWS if rows is None else rows
    return 2.0 * num_rows * in_features * out_features >= known.min_packed_linear_flop


def takes_int8(site: Product, static: Collection[fx.Node]) -> bool:
    """Whether our kernel can compute a product with 8-bit integers."""
    _, in_features, _ = _sizes(site)
    return (
        (site.bias is None or site.bias in static)
        and indirect.are_for(tensor_of(site.first))
        and indirect.has_int8(site.first.meta["val"].dtype)
        and _C.FEW_KERNEL_CHANNELS <= in_features <= _C.MOST_KERNEL_CHANNELS
    )


def _methods(site: Product, static: Collection[fx.Node], is_real: bool) -> list[int]:
    """The methods of our kernel in order of preference; empty if oneDNN or ATen is faster."""
    is_asked = site.first.meta.get(REQUESTED) == indirect.INT8 and takes_int8(site, static)
    method = _method(site, static, is_real)
    return [
        *([indirect.INT8] if is_asked else []),
        *([] if method is None else [method, indirect.SUMS]),
    ]


def _method(site: Product, static: Collection[fx.Node], is_real: bool) -> int | None:
    """The method of our kernel for the product; None if oneDNN or ATen is faster."""
    if site.bias is not None and site.bias not in static:
        return None
    if not indirect.are_for(tensor_of(site.first)):
        return None
    may_split = site.first.meta.get(REQUESTED) == indirect.BF16X2
    return quickest(*_sizes(site), is_real, site.first.meta["val"].dtype, may_split)


def quickest(
    rows: int | None,
    in_features: int,
    out_features: int,
    is_real: bool = True,
    dtype: torch.dtype = torch.float32,
    may_split: bool = False,
) -> int | None:
    """The fastest method of our kernel for a product: SUMS, or one of IN_UNIT; None if oneDNN is faster.

    Args:
        rows: None if their number is known only at run time.
        in_features: number of terms per sum.
        out_features: of the weight.
        is_real: whether rounding may differ.
        dtype: a key of `KERNEL_DTYPES`.
        may_split: whether BF16X2 is exact enough.
    """
    if KERNEL_DTYPES[dtype].sums_beat_onednn:
        if in_features > _C.MOST_KERNEL_CHANNELS:
            return None
        # The unit takes the same time for any number of rows up to 16.
        method = _estimated(rows or 16, in_features, out_features, dtype)
        is_for_onednn = method == indirect.SUMS and _C.kernel_has_matrix_unit() and (rows or 16) > _FEW_ROWS
        return None if is_for_onednn and in_features >= _C.FEW_KERNEL_CHANNELS else method
    # With more outputs, as for a vocabulary, a weight copy that is 1.5 times as large was not measured.
    is_in_cache = in_features * out_features <= _MAX_WEIGHT_IN_CACHE
    is_known = rows is not None and (is_in_cache or rows >= _MANY_ROWS)
    if is_real and is_known and max(in_features, out_features) <= _C.MOST_KERNEL_CHANNELS:
        method = _estimated(rows or 1, in_features, out_features, dtype, may_split)
        if method in indirect.IN_UNIT:
            return method
    return indirect.SUMS if _is_quick_by_sums(rows, in_features, out_features) else None


def _estimated(
    rows: int, in_features: int, out_features: int, dtype: torch.dtype, may_split: bool = False
) -> int:
    """The method that takes least by an estimate."""
    numbers = indirect.Window(out_features, (1, 1), (1, 1), (0, 0), (1, 1)).of_convolution(1, NONE)
    name = KERNEL_DTYPES[dtype].name
    return _C.kernel_method(1, in_features, 1, rows, numbers, torch.get_num_threads(), name, may_split)


def _is_quick_by_sums(rows: int | None, in_features: int, out_features: int) -> bool:
    """Whether sums are faster than oneDNN and ATen."""
    if in_features > _C.MOST_KERNEL_CHANNELS:
        return False
    if rows is None:
        return in_features * out_features < _MAX_PRODUCT_WEIGHT
    if not _C.kernel_has_matrix_unit() and rows <= _MANY_SUMMED_ROWS:
        return True
    if rows > _FEW_ROWS and in_features * out_features > _MAX_WEIGHT_IN_CACHE:
        return False
    return 2.0 * rows * in_features * out_features < _MAX_PRODUCT_FLOP


def _rewrite(
    graph: fx.Graph,
    site: Product,
    rows: fx.Node,
    packed: dict[Any, fx.Node],
    finite: Collection[fx.Node],
) -> None:
    """Insert oneDNN's call in place of the last fused node; `rows` is the weight as [out, in]."""
    key = (packing.PACK_LINEAR, rows)
    if key not in packed:
        packed[key] = insert_after(graph, rows, packing.PACK_LINEAR, (rows,))
    result, bias = joined(graph, site)
    last, epilogue = fused_activation(result, result in finite)
    args = (site.x, packed[key], bias, epilogue.attr, list(epilogue.scalars), epilogue.algorithm)
    replace(graph, site.first, last, packing.LINEAR, args)


def _rewrite_to_indirect(
    graph: fx.Graph,
    site: Product,
    static: Collection[fx.Node],
    rows: fx.Node,
    ours: PackedWeights,
    method: int,
    is_real: bool,
) -> None:
    """The same with our own kernel; an addition that varies between calls stays a separate call."""
    result, bias = joined(graph, site)
    if bias is not None and bias not in static:
        result, bias = site.results[0], site.bias
    weight = ours.node(rows, bias, 1, method)
    last, epilogue = indirect.with_epilogue(converted(result, is_real))
    numbers = (_sizes(site)[2], method, *indirect.arguments_of(epilogue))
    args = (site.x, weight, *numbers, *types_of(site.first, last))
    replace(graph, site.first, last, LINEAR, args)
