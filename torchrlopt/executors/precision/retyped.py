"""Copies a lowered graph with some of its calls in bfloat16: those that are `lowerable`.

Every value exists in float32, in bfloat16, or in both: it is converted at most once, where it is computed.
Weights are converted in the prologue, once for each set of them.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.eager.kernels.indirect import INT8
from torchrlopt.executors.eager.kernels.sites import REQUESTED
from torchrlopt.executors.lowering.fx_values import ORIGIN, is_mutable, tensor_of
from torchrlopt.executors.lowering.lazy_code import lazy_module
from torchrlopt.executors.weights.half_precision import FOLLOWING, is_smooth
from torchrlopt.executors.weights.split_fx import reaching_output
from torchrlopt.executors.weights.static_part import static_nodes
from torchrlopt.executors.weights.widening import Widening, cast
from torchrlopt.ops.traits import MOVES, PRODUCTS
from torchrlopt.torch_private.pytree import tree_map_only

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
        if node.op != "call_function" or node in fixed or node.kwargs.get("dtype") is not None:
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
    module: fx.GraphModule, lowered: Collection[str], quantised: Collection[str] = ()
) -> fx.GraphModule:
    """Return a copy of a graph that computes calls in other types.

    Args:
        module: a lowered graph; nodes carry `meta["val"]`.
        lowered: names of calls to compute in bfloat16, all of them `lowerable`.
        quantised: names of calls to compute with 8-bit integers, see `kernels.int8.supports`; their operands
            and results stay in float32, or in bfloat16 if they are in `lowered`.
    """
    return lazy_module(module, _Copy(module.graph, frozenset(lowered), frozenset(quantised)).made())


class _Copy:
    """One walk over a graph.

    Args:
        graph: the old graph.
        lowered: names of the calls to lower.
        quantised: names of the calls to compute with 8-bit integers.
    """

    def __init__(self, graph: fx.Graph, lowered: frozenset[str], quantised: frozenset[str]) -> None:
        self._old, self._lowered, self._quantised = graph, lowered, quantised
        self._new = fx.Graph()
        self._high: dict[fx.Node, fx.Node] = {}  # as it was
        self._low: dict[fx.Node, fx.Node] = {}  # in bfloat16
        self._as_low = Widening(LOW)

    def made(self) -> fx.Graph:
        """Return the new graph."""
        for node in self._old.nodes:
            is_item = node.target is operator.getitem and node.args[0] in self._low
            if node.name in self._lowered or is_item:
                call = self._new.node_copy(node, self._lowered_of)
                call.meta["val"] = tree_map_only(torch.Tensor, self._value, node.meta["val"])
                self._low[node] = call
                if tensor_of(node) is not None and not _is_float32(node):
                    self._high[node] = call  # the indices of a max pool
            else:
                call = self._high[node] = self._new.node_copy(node, self._as_it_was)
            if node.name in self._quantised:
                call.meta[REQUESTED] = INT8
        return self._new

    def _value(self, value: torch.Tensor) -> torch.Tensor:
        return self._as_low(value) if value.dtype is torch.float32 else value

    def _as_it_was(self, node: fx.Node) -> fx.Node:
        if node not in self._high:
            self._high[node] = self._cast(node, self._low[node], node.meta["val"])
        return self._high[node]

    def _lowered_of(self, node: fx.Node) -> fx.Node:
        if node not in self._low:
            if not _is_float32(node):
                return self._as_it_was(node)
            self._low[node] = self._cast(node, self._high[node], self._as_low(node.meta["val"]))
        return self._low[node]

    def _cast(self, node: fx.Node, source: fx.Node, value: Any) -> fx.Node:
        call = cast(self._new, source, value)
        if ORIGIN in node.meta:
            call.meta[ORIGIN] = node.meta[ORIGIN]
        return call


def _is_float32(node: fx.Node) -> bool:
    value = tensor_of(node)
    return value is not None and value.dtype is torch.float32
