"""Convolutions with a weight that is ready before the call become oneDNN's packed, fused convolution.

`conv`, `conv -> activation`, `conv + residual` each become one call; the weight is packed by a call that
depends on weights only and so moves to the prologue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.eager.kernels import packing
from torchrlopt.executors.eager.kernels.epilogues import NONE, added_value, fused_activation
from torchrlopt.executors.eager.kernels.selection import insert_after, replace, select
from torchrlopt.executors.lowering.fx_values import (
    arguments,
    ints,
    shape_key,
    static_shape,
    tensor_of,
)

aten = torch.ops.aten
_FORWARD = frozenset({aten.conv2d.default, aten.conv3d.default})


@dataclass(frozen=True)
class Site:
    """One convolution: where it is and everything its packed form needs, sizes as plain ints."""

    node: fx.Node
    x: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    output_padding: list[int] | None
    groups: int


def select_convolutions(
    graph: fx.Graph, static: Collection[fx.Node], finite: Collection[fx.Node]
) -> list[fx.Node]:
    """Replace what pays by packed calls, in place.

    Args:
        graph: an ATen graph with `meta["val"]`.
        static: the nodes that are the same at every call.
        finite: the nodes whose values may be taken for finite.

    Returns:
        The packed calls, each channels_last whatever the original was; the caller restores layouts.
    """
    packed: dict[Any, fx.Node] = {}

    def rewrite(site: Site) -> fx.Node:
        return _rewrite(graph, site, packed, finite)

    return select(graph, lambda node: site_of(node, static, packing.can_pack), _pays, rewrite)


def site_of(
    node: fx.Node, static: Collection[fx.Node], is_usable: Callable[[torch.Tensor | None], bool]
) -> Site | None:
    """The convolution at this node, when its weight is ready before the call and a kernel takes it.

    Args:
        node: any node.
        static: the nodes that are the same at every call.
        is_usable: whether there are such kernels for the dtype and device of a tensor.
    """
    if node.op != "call_function" or not (node.target is aten.convolution.default or node.target in _FORWARD):
        return None
    named = arguments(node)
    x, weight, bias = named["input"], named["weight"], named["bias"]
    values = [tensor_of(each) for each in (x, weight, node)]
    if weight not in static or not all(map(is_usable, values)):
        return None
    if bias is not None and not is_usable(tensor_of(bias)):
        return None
    weight_shape = static_shape(weight)
    dtypes = {value.dtype for value in (*values, tensor_of(bias)) if value is not None}
    if weight_shape is None or 0 in weight_shape or len(weight_shape) not in (4, 5) or len(dtypes) != 1:
        return None
    rank = len(weight_shape) - 2
    if len(shape_key(x) or ()) != rank + 2:
        return None
    window = [_per_axis(named[name], rank) for name in ("stride", "padding", "dilation")]
    if any(each is None for each in window) or not isinstance(named["groups"], int):
        return None
    stride, padding, dilation = (each for each in window if each is not None)
    output_padding = None
    if named.get("transposed", False):
        output_padding = _per_axis(named["output_padding"], rank)
        if static_shape(x) is None or output_padding is None:
            return None
        if not _can_transpose(weight_shape, stride, output_padding, named["groups"]):
            return None
    return Site(node, x, weight, bias, stride, padding, dilation, output_padding, named["groups"])


def _per_axis(value: Any, rank: int) -> list[int] | None:
    """One int for each spatial axis; None for symbolic or negative ones."""
    if not isinstance(value, list | tuple):
        return None
    numbers = ints(value)
    if numbers is None or any(number < 0 for number in numbers):
        return None
    return numbers * rank if len(numbers) == 1 else numbers


def _can_transpose(
    weight: tuple[int, ...], stride: list[int], output_padding: list[int], groups: int
) -> bool:
    """False for what oneDNN lacks: depth-wise, three spatial axes, an output padding of a stride or more."""
    if len(weight) != 4 or (groups > 1 and groups == weight[0]):
        return False
    return all(extra < step for extra, step in zip(output_padding, stride, strict=True))


def _pays(site: Site) -> bool:
    shape = static_shape(site.weight)
    assert shape is not None
    if site.output_padding is not None:
        return True
    return packing.packed_convolution_pays(static_shape(site.x), static_shape(site.node), shape, site.groups)


def _rewrite(graph: fx.Graph, site: Site, packed: dict[Any, fx.Node], finite: Collection[fx.Node]) -> fx.Node:
    """Put the packed call where the last fused node was; returns it."""
    weight = _packed_weight(graph, site, packed)
    window = (site.padding, site.stride, site.dilation, site.groups)
    last, epilogue = fused_activation(site.node, site.node in finite)
    residual = _residual(site) if epilogue is NONE and site.output_padding is None else None
    args: tuple[Any, ...]
    if residual is not None:
        last, other = residual
        target = packing.CONVOLUTION_ADD
        user, epilogue = fused_activation(last, last in finite)
        tail: tuple[Any, ...] = (None, [], None)
        if epilogue.attr == "relu":  # the only one that oneDNN has behind a sum
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


def _residual(site: Site) -> tuple[fx.Node, fx.Node] | None:
    """The sum this convolution can be fused into: the same shape and dtype, nothing broadcast."""
    added = added_value(site.node)
    if added is None:
        return None
    total, other = added
    value, of_conv = tensor_of(other), tensor_of(site.node)
    if value is None or of_conv is None or value.dtype != of_conv.dtype or not packing.can_pack(value):
        return None
    return added if shape_key(other) == shape_key(site.node) == shape_key(total) else None


def _packed_weight(graph: fx.Graph, site: Site, packed: dict[Any, fx.Node]) -> fx.Node:
    """The packing call of this weight for these parameters, made once; placed right after the weight."""
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
