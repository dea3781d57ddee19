"""Replaces convolutions with precomputed weights by packed, fused ones: our own or oneDNN's.

`conv`, `conv -> activation` and `conv + residual` each become one call. The weight is packed by a call that
depends on weights only and therefore moves to the prologue.
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
from torchrlopt.executors.eager.kernels.epilogues import NONE, added_like, fused_activation
from torchrlopt.executors.eager.kernels.operators import CONV
from torchrlopt.executors.eager.kernels.packed_weights import PackedWeights
from torchrlopt.executors.eager.kernels.selection import insert_after, replace
from torchrlopt.executors.eager.kernels.sites import (
    REQUESTED,
    Convolution,
    are_for_or_packed,
    convolution_at,
    without_padding,
)
from torchrlopt.executors.lowering.fx_values import arguments, shape_key, static_shape, tensor_of


def select_convolutions(
    graph: fx.Graph, static: Collection[fx.Node], finite: Collection[fx.Node], is_real: bool
) -> list[fx.Node]:
    """Replace convolutions by packed calls where that is faster; see `selection`.

    Args:
        graph: an ATen graph.
        static: the nodes that are the same in every call.
        finite: the nodes whose values may be assumed finite.
        is_real: whether rounding may differ, which allows methods other than plain sums.

    Returns:
        The packed calls, each channels_last regardless of the original; the caller restores layouts.
    """
    packed: dict[Any, fx.Node] = {}
    ours = PackedWeights(graph)
    calls = []
    for node in list(graph.nodes):
        site = convolution_at(node, static, are_for_or_packed)
        if site is None:
            continue
        if _is_ours(site, static):
            wanted = _methods(site, static, is_real)
            method = ours.first_that_fits(site.weight, site.bias, site.groups, wanted)
            if method is not None:
                calls.append(_rewrite_to_indirect(graph, site, ours, method, is_real))
        elif packing.can_pack(tensor_of(node)) and _pays(site):
            calls.append(_rewrite(graph, site, packed, finite))
    return calls


def _methods(site: Convolution, static: Collection[fx.Node], is_real: bool) -> list[int]:
    """The methods of our kernel in order of preference."""
    method = _method(site)
    # Sums of bfloat16 in the matrix unit are rounded once, like all others.
    wanted = [method, indirect.SUMS] if is_real or method == indirect.BF16 else [indirect.SUMS]
    is_asked = site.node.meta.get(REQUESTED) == indirect.INT8 and takes_int8(site, static)
    return [indirect.INT8, *wanted] if is_asked else wanted


def _is_ours(site: Convolution, static: Collection[fx.Node]) -> bool:
    """Whether our own kernel supports a convolution and its bias, if any, is also precomputed."""
    return (site.bias is None or site.bias in static) and _takes(site) and not _is_for_onednn(site)


def _is_for_onednn(site: Convolution) -> bool:
    """Whether oneDNN uses a matrix unit for bfloat16 and ours do not: vector units take ten times as long."""
    shape = static_shape(site.weight)
    is_half = site.node.meta["val"].dtype is torch.bfloat16
    return is_half and _C.kernel_has_matrix_unit() and site.groups > 1 and shape is not None and shape[1] > 16


def takes_int8(site: Convolution, static: Collection[fx.Node]) -> bool:
    """Whether our kernel can compute a convolution with 8-bit integers."""
    if not _is_ours(site, static) or not indirect.has_int8(site.node.meta["val"].dtype):
        return False
    shape = static_shape(site.weight)
    return shape is not None and site.groups == 1 and shape[1] >= _C.FEW_KERNEL_CHANNELS


def _takes(site: Convolution) -> bool:
    """Whether we have a kernel for a convolution."""
    shape = static_shape(site.weight)
    if (
        shape is None
        or len(shape) != 4
        or site.output_padding is not None
        or not indirect.are_for(tensor_of(site.node))
    ):
        return False
    outputs, inputs = shape[0], shape[1] * site.groups
    if max(outputs, inputs) > _C.MOST_KERNEL_CHANNELS or not _window_of(site)[1].is_usual():
        return False
    if site.groups > 1:
        dtype = KERNEL_DTYPES[site.node.meta["val"].dtype]
        return _C.kernel_takes_groups(outputs, inputs, site.groups, dtype.name)
    # The kernel for few channels needs windows larger than 1x1; the other reads few channels one by one.
    is_read_well = inputs >= _C.FEW_KERNEL_CHANNELS or math.prod(shape[2:]) > 1
    return is_read_well and outputs >= _C.LEAST_KERNEL_CHANNELS


def _window_of(site: Convolution) -> tuple[fx.Node, indirect.Window]:
    """The input of a convolution and its window, which includes surrounding zero padding."""
    shape = static_shape(site.weight)
    assert shape is not None  # as `_takes` sees
    x, before, behind = without_padding(site)
    return x, indirect.Window(shape[0], shape[2:], site.stride, before, site.dilation, behind)


def needs_channels_last(call: fx.Node) -> bool:
    """Whether a call of `conv` reads its input in channels_last only.

    With few channels the kernel reads any strides (`takes_any_strides` in csrc/kernels/convolution.h;
    `_takes` rejects the cases that this excludes).
    """
    shape = shape_key(call.args[0])
    channels = None if shape is None else shape[1]
    is_few = isinstance(channels, int) and channels < _C.FEW_KERNEL_CHANNELS
    return arguments(call)["groups"] > 1 or not is_few


def _rewrite_to_indirect(
    graph: fx.Graph, site: Convolution, packed: PackedWeights, method: int, is_real: bool
) -> fx.Node:
    """Insert a call of our kernel in place of the last fused node; returns it."""
    value = converted(site.node, is_real)
    last, summand = added_like(value) or (value, None)
    last, epilogue = indirect.with_epilogue(last)
    x, window = _window_of(site)
    weight = packed.node(site.weight, site.bias, site.groups, method)
    numbers = (site.groups, method, *indirect.arguments_of(epilogue))
    sizes = (window.out_channels, *window.arguments())
    args = (x, weight, summand, *sizes, *numbers, *types_of(site.node, last))
    return replace(graph, site.node, last, CONV, args)


def _method(site: Convolution) -> int:
    """The fastest method for a convolution with the current number of threads.

    All methods are equal over the reals. If the number of images is known only at run time, the method for
    one image is used.
    """
    x, window = _window_of(site)
    numbers = window.of_convolution(site.groups, NONE)
    images, channels, height, width = shape_key(x) or (1, None, None, None)
    dtype = KERNEL_DTYPES[x.meta["val"].dtype].name
    if not (isinstance(channels, int) and isinstance(height, int) and isinstance(width, int)):
        is_in_unit = dtype == "bfloat16" and _C.kernel_has_matrix_unit() and site.groups == 1
        is_deep = isinstance(channels, int) and channels >= _C.FEW_KERNEL_CHANNELS
        return indirect.BF16 if is_in_unit and is_deep else indirect.SUMS
    images = images if isinstance(images, int) else 1
    may_split = site.node.meta.get(REQUESTED) == indirect.BF16X2
    sizes = (images, channels, height, width)
    return _C.kernel_method(*sizes, numbers, torch.get_num_threads(), dtype, may_split)


def _pays(site: Convolution) -> bool:
    """Whether oneDNN's packed convolution is faster than ATen's."""
    if site.output_padding is None:
        return True
    # With packed weights oneDNN takes 3 to 4 times as long if a stride does not divide the result: with
    # AVX2, 64 channels, 3 x 3 / 2, 28 x 28 to 55 x 55 take 9.6 ms, in ATen 2.3; to 56 x 56 1.6 in both.
    result = static_shape(site.node)
    is_whole = result is not None and not any(n % s for n, s in zip(result[2:], site.stride, strict=True))
    return is_whole and max(site.stride) <= packing.MOST_TRANSPOSED_STRIDE


def _rewrite(
    graph: fx.Graph, site: Convolution, packed: dict[Any, fx.Node], finite: Collection[fx.Node]
) -> fx.Node:
    """Insert the packed call in place of the last fused node; returns it."""
    weight = _packed_weight(graph, site, packed)
    window = (site.padding, site.stride, site.dilation, site.groups)
    last, epilogue = fused_activation(site.node, site.node in finite)
    residual = added_like(site.node) if epilogue is NONE and site.output_padding is None else None
    args: tuple[Any, ...]
    if residual is not None:
        last, other = residual
        target = packing.CONVOLUTION_ADD
        user, epilogue = fused_activation(last, last in finite)
        tail: tuple[Any, ...] = (None, [], None)
        if epilogue.attr == "relu":  # the only activation that oneDNN supports after a sum
            last, tail = user, ("relu", [], "")
        args = (site.x, other, weight, site.bias, *window, "add", 1.0, *tail)
    else:
        tail = (epilogue.attr, list(epilogue.scalars), epilogue.algorithm)
        if site.output_padding is not None:
            target = packing.TRANSPOSED
            args = (site.x, weight, site.bias, site.padding, site.output_padding, *window[1:], *tail)
        else:
            target = packing.CONVOLUTION
            args = (site.x, weight, site.bias, *window, *tail)
    return replace(graph, site.node, last, target, args)


def _packed_weight(graph: fx.Graph, site: Convolution, packed: dict[Any, fx.Node]) -> fx.Node:
    """The packing call of this weight for these parameters; created once, right after the weight."""
    x_shape = static_shape(site.x)
    hint = None if x_shape is None or 0 in x_shape else list(x_shape)
    window: tuple[Any, ...] = (site.padding, site.stride, site.dilation, site.groups, hint)
    target = packing.PACK_CONVOLUTION
    if site.output_padding is not None:
        window = (site.padding, site.output_padding, *window[1:])
        target = packing.PACK_TRANSPOSED
    key = (target, site.weight, repr(window))
    if key not in packed:
        packed[key] = insert_after(graph, site.weight, target, (site.weight, *window))
    return packed[key]
