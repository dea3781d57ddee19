"""Computes 1-D convolutions, and what stands between them, on images with a height of one.

There are kernels for images, packed weights, fused activations and a layout in which the channels of a pixel
are adjacent. For rows ATen has none of them: it makes each convolution an image of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.eager.kernels.selection import insert_after
from torchrlopt.executors.eager.kernels.sites import are_for_or_packed
from torchrlopt.executors.lowering.fx_values import arguments, is_elementwise, shape_key, tensor_of
from torchrlopt.torch_private.operators import OpOverload

aten = torch.ops.aten

_ROWS = 3  # batch, channels, the pixels of a row
_HEIGHT = -2
"""The axis that rows lack."""

_ON_IMAGES = {
    aten.constant_pad_nd.default: aten.constant_pad_nd.default,
    aten.reflection_pad1d.default: aten.reflection_pad2d.default,
    aten.replication_pad1d.default: aten.replication_pad2d.default,
}
"""What pads an image of one row as the key pads the row."""


def convolve_rows_as_images(graph: fx.Graph, static: Collection[fx.Node]) -> None:
    """Replace 1-D convolutions with precomputed weights by 2-D ones; see `selection`."""
    images: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op == "call_function" and node not in static:
            call = _on_images(graph, node, static, images)
            if call is not None:
                _put(graph, node, call, images)
    for rows in reversed(images):
        if not rows.users:
            graph.erase_node(rows)


def _on_images(
    graph: fx.Graph, node: fx.Node, static: Collection[fx.Node], images: dict[fx.Node, fx.Node]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """Target and arguments of the same call on images of one row; None to leave it alone."""
    if len(shape_key(node) or ()) != _ROWS:
        return None

    def image(rows: fx.Node) -> fx.Node:
        if rows in images or len(shape_key(rows) or ()) < 2:  # a number, or one for each pixel
            return images.get(rows, rows)
        with graph.inserting_before(node):
            view = graph.call_function(aten.unsqueeze.default, (rows, _HEIGHT))
        view.meta = {**rows.meta, "val": rows.meta["val"].unsqueeze(_HEIGHT)}
        return view

    if node.target is aten.convolution.default:
        named = arguments(node)
        x, weight = named["input"], named["weight"]
        if weight not in static or not all(map(are_for_or_packed, map(tensor_of, (x, weight, node)))):
            return None
        matrix = insert_after(graph, weight, aten.unsqueeze.default, (weight, _HEIGHT))
        matrix.meta["val"] = weight.meta["val"].unsqueeze(_HEIGHT)
        window = [[1, *named["stride"]], [0, *named["padding"]], [1, *named["dilation"]]]
        transposed = (named["transposed"], [0, *named["output_padding"]])
        args = (image(x), matrix, named["bias"], *window, *transposed, named["groups"])
        return node.target, args, {}
    if not images.keys() & set(node.all_input_nodes):
        return None
    if is_elementwise(node.target):
        return node.target, fx.map_arg(node.args, image), fx.map_arg(node.kwargs, image)
    named = arguments(node) if isinstance(node.target, OpOverload) else {}
    if node.target in _ON_IMAGES and len(named["pad" if "pad" in named else "padding"]) == 2:
        x, pads, *rest = named.values()
        return _ON_IMAGES[node.target], (image(x), [*pads, 0, 0], *rest), {}
    if node.target is aten.cat.default:
        axis = named["dim"] % _ROWS
        return node.target, (fx.map_arg(named["tensors"], image), axis + (axis == _ROWS - 1)), {}
    return None


def _put(
    graph: fx.Graph,
    node: fx.Node,
    call: tuple[Any, tuple[Any, ...], dict[str, Any]],
    images: dict[fx.Node, fx.Node],
) -> None:
    """Put a call on images in place of a call on rows, whose other readers get a view of the result."""
    with graph.inserting_before(node):
        made = graph.call_function(*call)
        rows = graph.call_function(aten.squeeze.dim, (made, _HEIGHT))
    made.meta, rows.meta = {**node.meta, "val": node.meta["val"].unsqueeze(_HEIGHT)}, dict(node.meta)
    node.replace_all_uses_with(rows)
    graph.erase_node(node)
    images[rows] = made
