"""Turns convolutions whose result is one pixel into products, as in squeeze-and-excitation blocks.

ATen's choice for them is slow in half precision. On 2 cores of an AMD EPYC, one image, microseconds (`python
-m baselines.kernels --what calls`):

    channels         float32                       bfloat16
                     convolution   product         convolution   product
    120 to 32                4.5       2.5                48.6       3.6
    480 to 120              13.1       9.0                68.6      20.9
    960 to 240              21.0      17.8                91.5      28.7
    2048 to 1000             139       135                1047       127

The passes that pack products or fuse them with what follows then apply here too.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from torchrlopt.executors.eager.kernels.sites import REQUESTED
from torchrlopt.executors.lowering.fx_values import (
    ORIGIN,
    arguments,
    cast_to,
    is_contiguous,
    is_elementwise,
    only_user,
    shape_key,
    tensor_of,
)

aten = torch.ops.aten

_CONVOLUTIONS = frozenset(
    {aten.convolution.default, aten.conv1d.default, aten.conv2d.default, aten.conv3d.default}
)
_MIN_RANK = 3  # batch, channels, an axis of pixels


def flatten_single_pixels(graph: fx.Graph) -> None:
    """Replace such convolutions, and activations after them, by matrix operations between views."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _CONVOLUTIONS and _is_of_one_pixel(node):
            _flatten(graph, node)


def _is_of_one_pixel(node: fx.Node) -> bool:
    """True if every result is a sum over a whole image and has the strides of a product's result."""
    named = arguments(node)
    x, weight, bias = named["input"], named["weight"], named["bias"]
    values = [tensor_of(each) for each in (x, weight, bias, node) if each is not None]
    image, kernel, result = (shape_key(each) for each in (x, weight, node))
    if any(value is None for value in values) or image is None or kernel is None or result is None:
        return False
    if not (len(image) == len(kernel) == len(result) >= _MIN_RANK) or image[1:] != kernel[1:]:
        return False  # grouped, or the image is larger than the kernel
    if named.get("transposed", False) or not is_contiguous(x):
        return False
    if any(isinstance(size, str) or size == 0 for size in kernel):
        return False
    if any(pad != 0 for pad in named["padding"]):
        return False
    value = values[-1]
    assert value is not None
    if not value.is_floating_point():
        return False
    if value.is_cuda and value.dtype is torch.float32:
        return False  # cuDNN's precision settings differ from those of products
    return value.stride()[1:] == (1,) * (value.dim() - 1)


def _flatten(graph: fx.Graph, node: fx.Node) -> None:
    named = arguments(node)
    x, weight, value = named["input"], named["weight"], node.meta["val"]
    outputs, *inner = weight.meta["val"].shape
    num_terms = math.prod(inner)
    with graph.inserting_before(node):
        rows = graph.call_function(aten.view.default, (x, [-1, num_terms]))
        rows.meta["val"] = x.meta["val"].view(-1, num_terms)
        matrix = graph.call_function(aten.reshape.default, (weight, [outputs, num_terms]))
        matrix.meta["val"] = weight.meta["val"].reshape(outputs, num_terms)
        product = graph.call_function(aten.linear.default, (rows, matrix, named["bias"]))
        product.meta["val"] = value.view(-1, outputs)
        if REQUESTED in node.meta:
            product.meta[REQUESTED] = node.meta[REQUESTED]
    last, inside = node, {node: product}
    while (user := _activation_of(last)) is not None:  # a product can fuse it
        with graph.inserting_before(user):
            inside[user] = graph.node_copy(user, lambda each: inside.get(each, each))
        inside[user].meta["val"] = user.meta["val"].view(-1, outputs)
        last = user
    with graph.inserting_before(last):
        shape = [-1, outputs, *(1 for _ in inner[1:])]
        result = graph.call_function(aten.view.default, (inside[last], shape))
    for call in (rows, matrix, product):
        if ORIGIN in node.meta:
            call.meta[ORIGIN] = node.meta[ORIGIN]
    result.meta.update(last.meta)
    last.replace_all_uses_with(result)
    for each in reversed(inside):
        graph.erase_node(each)


def _activation_of(node: fx.Node) -> fx.Node | None:
    """The only reader, if it is elementwise with one operand, or a conversion, and keeps the strides."""
    user = only_user(node)
    if user is None or user.all_input_nodes != [node]:
        return None
    value, given = tensor_of(user), tensor_of(node)
    if value is None or given is None or value.stride() != given.stride():
        return None
    is_activation = is_elementwise(user.target) and value.dtype == given.dtype
    if not (is_activation or cast_to(user) is not None):
        return None
    return user
