"""Evaluates the arithmetic of a weight prologue in float64.

A folded weight (a kernel times a scale, a sum of kernels, a product of adapters) replaces many roundings of
the original by its own. Computed in float64 and rounded once, it is as accurate as a weight can be; the
prologue runs once per set of weights, so the cost is negligible.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

from torchrlopt.executors.weights.split_fx import reaching_output
from torchrlopt.executors.weights.static_part import hoisted_calls
from torchrlopt.executors.weights.two_dtypes import TwoDtypes
from torchrlopt.ops.traits import MOVES

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
    over_weights = {step.node for step in hoisted_calls(module.graph, static)}
    made = _InFloat64(reaching_output(module.graph))
    computed: set[fx.Node] = set()
    for node in module.graph.nodes:
        is_arithmetic = node.target in _ARITHMETIC and _is_floating(node)
        moves_computed = node.target in MOVES and not computed.isdisjoint(node.all_input_nodes)
        if node in over_weights and (is_arithmetic or moves_computed):
            made.copy_in_other(node)
            computed.add(node)
        else:
            made.copy(node)
    module.graph = made.graph


class _InFloat64(TwoDtypes):
    """Keeps returned views: a cast makes a tensor dense, but a view has the gaps and the memory of its base.

    Args:
        returned: nodes that reach the output.
    """

    def __init__(self, returned: Collection[fx.Node]) -> None:
        super().__init__(lambda dtype: dtype.is_floating_point, torch.float64)
        self._returned = returned

    def in_own(self, node: fx.Node) -> fx.Node:
        """Cast the base and take the view again."""
        if node not in self.own and node in self._returned and node.target in MOVES:
            self.copy(node)
        return super().in_own(node)


def _is_floating(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()
