"""Lets our kernels convert between float32 and bfloat16 while they read and write.

In a graph of mixed types, products of bfloat16 stand between conversions. Each would be a pass over memory,
and each product would be rounded although its reader wants float32.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.operators import CONV, LINEAR, PACK, POOL, set_types
from torchrlopt.executors.eager.kernels.selection import insert_after
from torchrlopt.executors.lowering.fx_values import (
    ORIGIN,
    arguments,
    cast_to,
    is_contiguous,
    is_elementwise,
    is_mutable,
    only_user,
    shape_key,
    tensor_of,
)
from torchrlopt.executors.weights.split_fx import reaching_output

aten = torch.ops.aten

_WRITERS = frozenset({CONV, LINEAR, POOL})


def is_conversion(node: object) -> bool:
    """Whether a call converts between two dtypes of our kernels, and both have kernels here."""
    if cast_to(node) is None:
        return False
    assert isinstance(node, fx.Node)
    return indirect.are_for(tensor_of(node)) and indirect.are_for(tensor_of(node.args[0]))


def merge_conversions(graph: fx.Graph) -> None:
    """Convert each value once, soon after it is computed, and nothing there and back, in place.

    What the caller gets stays memory of its own. If the graph mutates its own values, nothing changes.

    Args:
        graph: an ATen graph with `meta["val"]`.
    """
    if any(map(is_mutable, graph.nodes)):
        return
    graph.eliminate_dead_code()  # such as the indices of a max pool
    returned = reaching_output(graph)
    made: dict[Any, fx.Node] = {}
    waiting = [node for node in graph.nodes if is_conversion(node) and node not in returned]
    while waiting:
        earlier = _moved_up(graph, waiting[-1])
        if earlier:
            waiting[-1:] = earlier
        else:
            waiting.pop()
    for node in list(graph.nodes):
        if not is_conversion(node) or node in returned:
            continue
        source = node.args[0]
        is_widened = is_conversion(source) and tensor_of(source).dtype is torch.float32  # type: ignore[union-attr]
        if is_widened:  # exact, so that this conversion undoes it
            node.replace_all_uses_with(source.args[0])
        elif (twin := made.setdefault((source, cast_to(node)), node)) is not node:
            node.replace_all_uses_with(twin)
        if not node.users:
            graph.erase_node(node)


def _moved_up(graph: fx.Graph, conversion: fx.Node) -> list[fx.Node]:
    """The conversions of what a call reads that replace the conversion of its result; none if it stays.

    A concatenation and a max pool only move numbers, and are as right after rounding: between convolutions
    they are rounded where they are written, and moved at half the size.
    """
    source, dtype = conversion.args[0], cast_to(conversion)
    assert isinstance(source, fx.Node)
    if only_user(source) is not conversion or dtype is not torch.bfloat16:
        return []
    call, read = source, list(source.all_input_nodes)
    if source.target is operator.getitem and source.args[1] == 0 and only_user(read[0]) is source:
        call, read = read[0], read[0].all_input_nodes
    is_moving = call.target in (aten.cat.default, aten.max_pool2d_with_indices.default)
    if not is_moving or not all(map(_is_of_convolution, read)):
        return []
    made = []
    for each in read:
        with graph.inserting_after(each):
            made.append(graph.call_function(aten._to_copy.default, (each,), {"dtype": dtype}))
        made[-1].meta.update(conversion.meta)
        made[-1].meta["val"] = each.meta["val"].to(dtype)
        call.replace_input_with(each, made[-1])
    if call is not source:
        call.meta["val"] = (conversion.meta["val"], *call.meta["val"][1:])
    source.meta["val"] = conversion.meta["val"]
    conversion.replace_all_uses_with(source)
    graph.erase_node(conversion)
    return made


def _is_of_convolution(value: fx.Node) -> bool:
    """Whether a convolution computes a value for one reader, followed by activations and max pools."""
    while only_user(value) is not None:
        if value.target is aten.convolution.default:
            return True
        is_passed = (
            value.target in (operator.getitem, aten.max_pool2d_with_indices.default)
            or is_elementwise(value.target)
            or is_conversion(value)
        )
        if not is_passed or len(value.all_input_nodes) != 1:
            return value.target is aten.cat.default and all(map(_is_of_convolution, value.all_input_nodes))
        value = value.all_input_nodes[0]
    return False


def converted(value: fx.Node, is_real: bool) -> fx.Node:
    """The conversion that alone reads the result of a kernel, which can write it; otherwise `value`.

    Args:
        value: the result of a kernel.
        is_real: whether rounding may differ: a product of bfloat16 is then not rounded before it is widened.
    """
    user = only_user(value)
    if user is None or not is_conversion(user):
        return value
    return user if is_real or cast_to(user) is not torch.float32 else value


def types_of(product: fx.Node, last: fx.Node) -> tuple[torch.dtype | None, torch.dtype | None]:
    """`dtype` and `out_dtype` of a call that computes all from a product to the last node it replaces."""
    dtype = last.meta["val"].dtype
    return None, None if dtype is product.meta["val"].dtype else dtype


def absorb_conversions(graph: fx.Graph, is_real: bool) -> None:
    """Let calls of our kernels read and write the types around them, in place.

    Args:
        graph: an ATen graph with calls of our kernels and `meta["val"]`, without needless conversions.
        is_real: as for `converted`.
    """
    graph.eliminate_dead_code()  # what kernels have replaced would count as a reader
    for node in list(graph.nodes):
        if node.target in _WRITERS:
            absorb_result(graph, node, is_real)
        elif cast_to(node) is torch.bfloat16 and is_conversion(node):
            if not all(_reads_float32(call, node) for call in node.users):
                continue
            for call in list(node.users):
                _absorb_operand(graph, call, node)
            graph.erase_node(node)


def absorb_result(graph: fx.Graph, call: fx.Node, is_real: bool) -> None:
    """Let a call write what a conversion makes of its result, in place.

    Args:
        graph: the graph.
        call: of `conv`, `linear` or `pool`.
        is_real: as for `converted`.
    """
    last = converted(call, is_real)
    if last is call or arguments(call).get("summand") is not None:  # a summand is of the result's type
        return
    set_types(call, out_dtype=last.meta["val"].dtype)
    call.meta["val"] = last.meta["val"]
    call.meta[ORIGIN] = tuple(dict.fromkeys((*call.meta.get(ORIGIN, ()), *last.meta.get(ORIGIN, ()))))
    last.replace_all_uses_with(call)
    graph.erase_node(last)


def _reads_float32(call: fx.Node, x: fx.Node) -> bool:
    """Whether a kernel for bfloat16 can read its operand in float32; see `rounds_input` in csrc/kernels."""
    if call.args[:1] != (x,) or x in call.args[1:]:
        return False
    if call.target not in (CONV, LINEAR):
        return False
    named = arguments(call)
    method = named["method"]
    if method == indirect.BF16 or method in indirect.TILES:  # which multiply in float32 anyway
        return True
    if call.target is LINEAR:
        return bool(method == indirect.SUMS)
    channels = (shape_key(named["x"]) or (0, None))[1]
    # Planes are rounded as vectors, channels that lie side by side number by number: that takes longer than a
    # conversion (3 to 64 channels, 7 x 7, AMD EPYC of Zen 5: 1,499 us, with a conversion before it 981).
    is_few = isinstance(channels, int) and channels < _C.FEW_KERNEL_CHANNELS and is_contiguous(x.args[0])
    is_pixel = {*named["kernel"], *named["stride"]} == {1} and not any(named["padding"])
    return named["groups"] == 1 and (is_few or is_pixel)


def _absorb_operand(graph: fx.Graph, call: fx.Node, conversion: fx.Node) -> None:
    """Let a call read what a conversion reads."""
    named = arguments(call)
    types = {"dtype": torch.bfloat16, "out_dtype": tensor_of(call).dtype}  # type: ignore[union-attr]
    if named.get("method") in indirect.TILES:
        types["dtype"] = torch.float32
        packed = named["packed"]
        weight, bias, groups, method, _ = packed.args
        given = insert_after(graph, packed, PACK, (weight, bias, groups, method, torch.float32))
        call.replace_input_with(packed, given)
    set_types(call, **types)
    call.replace_input_with(conversion, conversion.args[0])  # type: ignore[arg-type]
