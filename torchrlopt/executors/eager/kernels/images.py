"""CPU kernels for channels_last images: pools, means over pixels, norms and channel concatenation.

Each pool becomes a call of our kernel. If images are concatenated along their channels, our kernels write
their results directly into the concatenated image, so nothing is copied.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.conversions import absorb_result
from torchrlopt.executors.eager.kernels.operators import (
    CONV,
    COPY_INTO,
    PACK_NORM,
    POOL,
    ROOM,
    can_write,
    write_into,
)
from torchrlopt.executors.eager.kernels.selection import first_result, replace
from torchrlopt.executors.lowering.fx_values import (
    ORIGIN,
    arguments,
    ints,
    only_user,
    static_shape,
    tensor_of,
)

aten = torch.ops.aten

# Our kernel sums the pixels of each row one by one, then the rows; ATen uses cascade summation.
_MAX_SUMMED = 512


def select_image_kernels(
    graph: fx.Graph, static: Collection[fx.Node], channels_last: Collection[fx.Node], is_real: bool
) -> None:
    """Replace such calls; see `selection`.

    Args:
        graph: an ATen graph, after `layout.propagate`.
        static: the nodes that are the same in every call.
        channels_last: the nodes whose values are in channels_last at run time.
        is_real: whether rounding may differ.
    """
    images = set(channels_last)
    for node in list(graph.nodes):
        if node.op != "call_function" or not node.args:
            continue
        if node.target is aten.cat.default:
            _join(graph, node, images)
        elif node.target is aten._native_batch_norm_legit_no_training.default:
            _normalise(graph, node, static, images, is_real)
        elif node.args[0] in images and _is_wide(node.args[0]):
            _pool(graph, node, images, is_real)


def _is_wide(node: Any) -> bool:
    shape = static_shape(node)
    if shape is None or len(shape) != 4 or not indirect.are_for(tensor_of(node)):
        return False
    return bool(_C.LEAST_KERNEL_CHANNELS <= shape[1] <= _C.MOST_KERNEL_CHANNELS)


def _pool(graph: fx.Graph, node: fx.Node, images: set[fx.Node], is_real: bool) -> None:
    """Call our kernel at this node, if it is a pool that we support."""
    last: fx.Node | None = node
    found = None
    if node.target is aten.max_pool2d_with_indices.default:
        last = first_result(node)
        found = _window(node, "max")
    elif node.target is aten.avg_pool2d.default:
        named = arguments(node)
        if named["divisor_override"] is None:
            found = _window(node, "mean" if named["count_include_pad"] else "mean of inside")
    elif node.target is aten.mean.dim:
        named = arguments(node)
        axes = sorted(axis % 4 for axis in named["dim"] or ())
        given = tensor_of(node.args[0])
        is_same = given is not None and named["dtype"] in (None, given.dtype)
        if axes == [2, 3] and named["keepdim"] and is_same:
            found = _whole_image(node)
    if found is None or last is None:  # the indices of a max pool are read
        return
    call = replace(graph, node, last, POOL, (node.args[0], *found))
    absorb_result(graph, call, is_real)
    images.add(call)


def _normalise(
    graph: fx.Graph, node: fx.Node, static: Collection[fx.Node], images: set[fx.Node], is_real: bool
) -> None:
    """Replace a batch norm that was not folded into a product by a 1x1 depthwise convolution."""
    named = arguments(node)
    facts = [named[name] for name in ("weight", "bias", "running_mean", "running_var")]
    last = first_result(node)
    if last is None or named["input"] not in images or not _is_wide(named["input"]):
        return
    given = [each for each in facts if each is not None]
    if not all(each in static and indirect.are_for(tensor_of(each)) for each in given):
        return
    with graph.inserting_before(node):
        packed = graph.call_function(PACK_NORM, (*facts, named["eps"], named["input"].meta["val"].dtype))
    packed.meta["val"] = given[-1].meta["val"]  # the packed tensor has no meaningful shape
    packed.meta[ORIGIN] = node.meta.get(ORIGIN, ())
    last, epilogue = indirect.with_epilogue(last)
    shape = static_shape(named["input"])
    assert shape is not None  # it is wide
    channels = shape[1]
    window = indirect.Window(channels, (1, 1), (1, 1), (0, 0), (1, 1)).arguments()
    args = (*window, channels, indirect.SUMS, *indirect.arguments_of(epilogue))
    call = replace(graph, node, last, CONV, (named["input"], packed, None, channels, *args))
    absorb_result(graph, call, is_real)
    images.add(call)


def _window(node: fx.Node, kind: str) -> tuple[Any, ...] | None:
    """The arguments of `pool` after the image; None if a number is symbolic."""
    named = arguments(node)
    shape = static_shape(node.args[0])
    kernel = named["kernel_size"]
    lists = (kernel, named["stride"] or kernel, named["padding"], named.get("dilation", [1]))
    sizes = [ints(each) for each in lists]
    if shape is None or any(each is None for each in sizes):
        return None
    pairs = [each * (2 // len(each)) for each in sizes if each is not None]
    window = indirect.Window(shape[1], *pairs)
    return (*window.arguments(), bool(named["ceil_mode"]), kind) if window.is_usual() else None


def _whole_image(node: fx.Node) -> tuple[Any, ...] | None:
    shape = static_shape(node.args[0])
    if shape is None or 0 in shape or max(shape[2:]) > _MAX_SUMMED:
        return None
    return (*indirect.Window(shape[1], shape[2:], (1, 1), (0, 0), (1, 1)).arguments(), False, "mean")


def _join(graph: fx.Graph, node: fx.Node, images: set[fx.Node]) -> None:
    """Let the parts be written directly into the result, if our kernels compute at least one of them."""
    named = arguments(node)
    shape, parts = static_shape(node), named["tensors"]
    if shape is None or len(shape) != 4 or named["dim"] % 4 != 1 or 0 in shape:
        return
    if len(set(parts)) < len(parts) or not images.issuperset(parts):
        return
    dtype = node.meta["val"].dtype
    if not all(indirect.are_for(tensor_of(each), dtype) for each in (node, *parts)):
        return
    writers = [part for part in parts if can_write(part) and only_user(part) is node]
    if not writers:
        return
    first = next(each for each in graph.nodes if each in set(writers))
    with graph.inserting_before(first):
        room = graph.call_function(ROOM, (list(shape), dtype))
    room.meta["val"] = node.meta["val"]
    channel = 0
    written = []
    for part in parts:
        width = (static_shape(part) or ())[1]
        if part in writers:
            write_into(part, room, channel)
            written.append(part)
        else:
            with graph.inserting_before(node):
                written.append(graph.call_function(COPY_INTO, (part, room, channel)))
            written[-1].meta["val"] = node.meta["val"]
        channel += width
    with graph.inserting_before(node):
        whole = graph.call_function(indirect.joined, (room, *written))
    whole.meta.update(node.meta)
    node.replace_all_uses_with(whole)
    graph.erase_node(node)
    images.add(whole)
