"""Copies a lowered graph with some of its calls in bfloat16: those that are `lowerable`.

Weights are converted in the prologue, once for each set of them.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.eager.kernels.indirect import BF16X2, INT8
from torchrlopt.executors.eager.kernels.sites import REQUESTED
from torchrlopt.executors.lowering.as_is import AS_IS
from torchrlopt.executors.lowering.fx_values import is_mutable, tensor_of
from torchrlopt.executors.lowering.lazy_code import lazy_module
from torchrlopt.executors.weights.half_precision import FOLLOWING, is_smooth
from torchrlopt.executors.weights.split_fx import reaching_output
from torchrlopt.executors.weights.static_part import static_nodes
from torchrlopt.executors.weights.two_dtypes import TwoDtypes
from torchrlopt.ops.traits import MOVES, PRODUCTS

aten = torch.ops.aten

LOW = torch.bfloat16

ATTENTIONS = frozenset(
    {aten.scaled_dot_product_attention.default, aten._scaled_dot_product_flash_attention_for_cpu.default}
)

CONTRACTIONS = PRODUCTS | ATTENTIONS | {aten.einsum.default}
"""Calls whose time is arithmetic: bfloat16 units compute them, with float32 sums."""

EXACT = MOVES | {
    aten.relu.default,
    aten.neg.default,
    aten.abs.default,
    aten.max_pool2d_with_indices.default,
    aten.amax.default,
    aten.amin.default,
    aten.maximum.default,
    aten.minimum.default,
}
"""Calls whose results need no rounding if their operands are rounded."""


def lowerable(graph: fx.Graph, static: Collection[str]) -> list[fx.Node]:
    """Return the calls that may compute in bfloat16: float32 in and out, the same meaning in both.

    Args:
        graph: a lowered graph; nodes carry `meta["val"]`.
        static: names of the placeholders that are the same in every call; calls over them alone stay exact.

    Returns:
        The calls, in order, without the items of their tuples, which follow them.
    """
    if any(map(is_mutable, graph.nodes)):
        return []  # a copy would not see later writes to the original
    fixed, returned = static_nodes(graph, static), reaching_output(graph)
    found = []
    for node in graph.nodes:
        if (
            node.op != "call_function"
            or AS_IS in node.meta
            or node in fixed
            or node.kwargs.get("dtype") is not None
        ):
            continue
        if node in returned and node.target in MOVES:
            continue  # an output that shares memory with another one
        is_one = node.target in CONTRACTIONS | FOLLOWING | MOVES or is_smooth(node.target)
        if is_one and node.target is not operator.getitem and _is_of_float32(node):
            found.append(node)
    return found


def _is_of_float32(node: fx.Node) -> bool:
    """True if the first result is float32, and all operands that are floating."""
    value = node.meta.get("val")
    first = value[0] if isinstance(value, tuple | list) and value else value
    operands = [tensor_of(each) for each in node.all_input_nodes]
    floats = [
        each.dtype
        for each in operands
        if each is not None and (each.is_floating_point() or each.is_complex())
    ]
    is_float32 = isinstance(first, torch.Tensor) and first.dtype is torch.float32
    return is_float32 and bool(floats) and all(each is torch.float32 for each in floats)


def owner_of(node: fx.Node) -> fx.Node:
    """The call whose result a node is, or is an item of."""
    return node.args[0] if node.target is operator.getitem else node  # type: ignore[return-value]


def passes_on(node: fx.Node) -> bool:
    """True for a call that only moves the elements of one operand, so that it has no type of its own."""
    return node.target in MOVES and len(node.all_input_nodes) == 1 and node.target not in _GATHERS


_GATHERS = frozenset(
    {aten.embedding.default, aten.index.Tensor, aten.index_select.default, aten.gather.default}
)


def retyped(
    module: fx.GraphModule,
    lowered: Collection[str],
    quantised: Collection[str] = (),
    fakes: dict[Any, torch.Tensor] | None = None,
    is_split: bool = False,
) -> fx.GraphModule:
    """Return a copy of a graph that computes calls in other types.

    Args:
        module: a lowered graph; nodes carry `meta["val"]`.
        lowered: names of calls to compute in bfloat16, all of them `lowerable`.
        quantised: names of calls to compute with 8-bit integers, see `kernels.int8.supports`; their operands
            and results stay in float32, or in bfloat16 if they are in `lowered`.
        fakes: fake tensors that other copies of the graph share.
        is_split: whether products of float32 may multiply two parts of bfloat16 each, see BF16X2.
    """
    made = TwoDtypes(lambda dtype: dtype is torch.float32, LOW, fakes)
    for node in module.graph.nodes:
        is_item = node.target is operator.getitem and node.args[0] in made.other
        call = made.copy_in_other(node) if node.name in lowered or is_item else made.copy(node)
        if node.name in quantised:
            call.meta[REQUESTED] = INT8
        elif is_split and node.target in CONTRACTIONS:
            call.meta[REQUESTED] = BF16X2
    return lazy_module(module, made.graph)
