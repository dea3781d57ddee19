"""Evaluates the arithmetic of a weight prologue in float64.

A folded weight (a kernel times a scale, a sum of kernels, a product of adapters) replaces many roundings of
the original by its own. Computed in float64 and rounded once, it is as accurate as a weight can be; the
prologue runs once per set of weights, so the cost is negligible.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.weights.split_fx import reaching_output
from torchrlopt.executors.weights.static_part import hoisted_calls
from torchrlopt.ops.traits import MOVES
from torchrlopt.torch_private.pytree import tree_map_only
from torchrlopt.torch_private.tensors import FakeTensor, dim_of

aten = torch.ops.aten

# Arithmetic with rounding that has the same meaning in every floating dtype.
_ARITHMETIC = {
    aten.add.Tensor,
    aten.addmm.default,
    aten.bmm.default,
    aten.div.Tensor,
    aten.einsum.default,
    aten.matmul.default,
    aten.mm.default,
    aten.mul.Scalar,
    aten.mul.Tensor,
    aten.neg.default,
    aten.reciprocal.default,
    aten.rsqrt.default,
    aten.sqrt.default,
    aten.sub.Tensor,
    aten.sum.dim_IntList,
}


def compute_in_float64(module: fx.GraphModule, static: Collection[str]) -> None:
    """Widen the arithmetic over static placeholders to float64, rounded once where it is used.

    Args:
        module: modified in place; nodes carry fake tensors in `meta["val"]`.
        static: names of the placeholders that are the same in every call.
    """
    returned = reaching_output(module.graph)
    over_weights = {step.node for step in hoisted_calls(module.graph, static)}
    graph = fx.Graph()
    narrow: dict[fx.Node, fx.Node] = {}
    wide: dict[fx.Node, fx.Node] = {}
    computed: set[fx.Node] = set()
    as_float64 = Widening(torch.float64)

    def narrowed(node: fx.Node) -> fx.Node:
        if node not in narrow:
            # A cast makes a tensor dense. A returned view has the gaps and the memory of its base, so cast
            # the base and take the view again.
            is_view = node in returned and node.target in MOVES
            narrow[node] = (
                graph.node_copy(node, narrowed) if is_view else cast(graph, wide[node], node.meta["val"])
            )
        return narrow[node]

    def widened(node: fx.Node) -> fx.Node:
        if node not in wide:
            if not _is_floating(node):
                return narrowed(node)
            wide[node] = cast(graph, narrow[node], as_float64(node.meta["val"]))
        return wide[node]

    for node in module.graph.nodes:
        is_arithmetic = node.target in _ARITHMETIC and _is_floating(node)
        moves_computed = node.target in MOVES and not computed.isdisjoint(node.all_input_nodes)
        if node in over_weights and (is_arithmetic or moves_computed):
            wide[node] = graph.node_copy(node, widened)
            if wide[node].kwargs.get("dtype") is not None:  # the call specifies the dtype of its operand
                wide[node].update_kwarg("dtype", torch.float64)
            wide[node].meta["val"] = tree_map_only(torch.Tensor, as_float64, node.meta["val"])
            computed.add(node)
        else:
            narrow[node] = graph.node_copy(node, narrowed)
    module.graph = graph


def _is_floating(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


class Widening:
    """Makes fake tensors of another dtype; one for all values of the same sizes, because each costs 0.1 ms.

    Args:
        dtype: the dtype.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._made: dict[Any, torch.Tensor] = {}

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        """A fake tensor like this one, in the other dtype."""
        key = (value.device, *map(dim_of, (*value.shape, *value.stride())))
        if key not in self._made:
            with value.fake_mode if isinstance(value, FakeTensor) else contextlib.nullcontext():
                self._made[key] = value.to(self._dtype)
        return self._made[key]


def cast(graph: fx.Graph, node: fx.Node, value: torch.Tensor) -> fx.Node:
    """`node` cast to the dtype of the fake tensor `value`, which represents the result."""
    call = graph.call_function(aten._to_copy.default, (node,), {"dtype": value.dtype})
    call.meta["val"] = value
    return call
