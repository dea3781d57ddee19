"""Where convolutions stand whose weight is ready before the call, and what a kernel needs to know of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.lowering.fx_values import arguments, ints, shape_key, static_shape, tensor_of

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


def without_padding(site: Site) -> tuple[fx.Node, list[int], list[int]]:
    """What a convolution of images reads where zeros are added before it, or rows and columns left away.

    Returns:
        The image without that, and how far the windows reach beyond it: above and in front, below and behind.
        Less than nothing where they stay inside.
    """
    x, before, behind = site.x, list(site.padding), list(site.padding)
    # Windows that reach beyond a slice would see what it cut off, where the convolution sees zeros.
    reaches_on = any(before)
    while x.op == "call_function":
        if x.target is aten.slice.Tensor and not reaches_on:
            found = _left_away(x)
            if found is None:
                break
            axis, front, back = found
            before[axis] -= front
            behind[axis] -= back
        elif x.target is aten.constant_pad_nd.default:
            pads = _zeros_around(x)
            if pads is None:
                break
            reaches_on = True
            for axis, (front, back) in enumerate(pads):
                before[axis] += front
                behind[axis] += back
        else:
            break
        x = arguments(x)["self"]
    return x, before, behind


def _left_away(part: fx.Node) -> tuple[int, int, int] | None:
    """Of a slice of an image: 0 for rows or 1 for columns, how many are left away before, and behind."""
    named = arguments(part)
    axis = named["dim"] % 4 - 2
    shape = static_shape(named["self"])
    bounds = ints([named["start"] or 0, sys.maxsize if named["end"] is None else named["end"]])
    if shape is None or len(shape) != 4 or bounds is None or named["step"] != 1 or axis < 0:
        return None
    size = shape[axis + 2]
    start, end, _ = slice(*bounds).indices(size)
    return (axis, start, size - end) if start < end else None


def _zeros_around(padding: fx.Node) -> list[tuple[int, int]] | None:
    """Of a padding of an image with zeros: above and below, in front and behind."""
    named = arguments(padding)
    pads = ints(named["pad"])
    if pads is None or len(pads) > 4 or min(pads, default=0) < 0 or named["value"] != 0:
        return None
    (front, back), (above, below) = (*zip(pads[::2], pads[1::2], strict=True), (0, 0), (0, 0))[:2]
    return [(above, below), (front, back)]
