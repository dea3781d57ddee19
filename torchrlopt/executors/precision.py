"""Computes expressions over weights in float64 and rounds once, where they are used.

A folded weight goes through several roundings in float32 (normalise, scale, sum over branches), and each call
pays for them in accuracy; the prologue runs once per set of weights, so that width costs next to nothing.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.fx_values import tensor_of

aten = torch.ops.aten

_ARITHMETIC = frozenset(
    {
        aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.mul.Tensor, aten.mul.Scalar,
        aten.div.Tensor, aten.div.Scalar, aten.rsub.Scalar, aten.rsub.Tensor, aten.neg.default,
        aten.sqrt.default, aten.rsqrt.default, aten.reciprocal.default, aten.square.default,
        aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.mm.default, aten.bmm.default,
        aten.matmul.default, aten.addmm.default, aten.baddbmm.default, aten.convolution.default,
    }
)  # fmt: skip
_MOVEMENT = frozenset(
    {
        aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.permute.default,
        aten.transpose.int, aten.t.default, aten.expand.default, aten.slice.Tensor, aten.select.int,
        aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default, aten.cat.default, aten.stack.default,
        aten.constant_pad_nd.default, aten.clone.default, aten.contiguous.default, aten.flip.default,
        aten.repeat.default, aten.split.Tensor, aten.split_with_sizes.default, operator.getitem,
    }
)  # fmt: skip


def widen(graph: fx.Graph) -> None:
    """Let float32 arithmetic run in float64, in place.

    Results keep float32, and so does every call that is neither plain arithmetic nor movement of elements.

    Args:
        graph: a prologue with `meta["val"]`, which keeps describing the float32 values.
    """
    pass_ = _Widening(graph)
    for node in list(graph.nodes):
        pass_.visit(node)


class _Widening:
    """One walk over the graph in order: which nodes have become float64, and the conversions made."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._last_placeholder = ([*graph.find_nodes(op="placeholder")] or [None])[-1]
        self._is_wide: set[fx.Node] = set()
        self._converted: dict[tuple[fx.Node, torch.dtype], fx.Node] = {}

    def visit(self, node: fx.Node) -> None:
        """Make one node wide, or give it narrow operands."""
        sources = node.all_input_nodes
        is_movement = node.target in _MOVEMENT and any(source in self._is_wide for source in sources)
        is_arithmetic = node.target in _ARITHMETIC and _is_float(node)
        if (is_movement or is_arithmetic) and all(self._can_be_wide(source) for source in sources):
            self._is_wide.add(node)
            self._read(node, torch.float64)
        else:
            self._read(node, torch.float32)

    def _can_be_wide(self, source: fx.Node) -> bool:
        return source in self._is_wide or _is_float(source)

    def _read(self, node: fx.Node, dtype: torch.dtype) -> None:
        """Let the node read its operands in this precision."""

        def operand(source: fx.Node) -> Any:
            if (source in self._is_wide) == (dtype == torch.float64):
                return source
            if dtype == torch.float32 and not isinstance(source.meta.get("val"), torch.Tensor):
                return source
            return self._convert(source, dtype)

        node.args = fx.map_arg(node.args, operand)
        node.kwargs = fx.map_arg(node.kwargs, operand)

    def _convert(self, source: fx.Node, dtype: torch.dtype) -> fx.Node:
        key = (source, dtype)
        if key not in self._converted:
            # All placeholders stay in front.
            place = self._last_placeholder if source.op == "placeholder" else source
            with self._graph.inserting_after(place):
                call = self._graph.call_function(aten._to_copy.default, (source,), {"dtype": dtype})
            call.meta["val"] = source.meta.get("val")
            self._converted[key] = call
        return self._converted[key]


def _is_float(node: fx.Node) -> bool:
    value = tensor_of(node)
    return value is not None and value.dtype == torch.float32
