"""Gives the outputs of a lowered graph the strides of the original, and memory of their own where needed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.lowering.converters.emitter import Emitter, aten
from torchrlopt.executors.lowering.fx_values import dim_key


def layout_of(value: Any) -> Any:
    """Strides that can be compared, symbolic ones as text; None for what is no tensor."""
    if not isinstance(value, torch.Tensor):
        return None
    # The stride of a dimension with one element says nothing about the layout.
    return tuple(
        None if isinstance(size, int) and size == 1 else dim_key(stride)
        for size, stride in zip(value.shape, value.stride(), strict=True)
    )


class OutputEmitter:
    """Adds the outputs of one graph.

    Args:
        emitter: the graph.
    """

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._owners: dict[fx.Node, fx.Node] = {}

    def matched(self, node: fx.Node, source: fx.Node) -> fx.Node:
        """The node to return where the original returned `source`.

        It has the original's strides, and memory of its own where the original had.

        Args:
            node: the present node with the value.
            source: the original output node.
        """
        if not isinstance(source.meta.get("val"), torch.Tensor):
            return node
        node = with_layout(self._emitter, node, source.meta["val"])
        mine, theirs = _base(node), _base(source)
        # A caller may write to an output: it must not reach an input, a constant or another output by that.
        if mine.op == "placeholder":
            shares = theirs.op == "placeholder" and theirs.name == mine.name
        elif mine.op == "get_attr":
            shares = theirs.op == "get_attr"
        else:
            shares = self._owners.setdefault(mine, theirs) is theirs
        return node if shares else self._emitter.op(aten.clone.default, node)


def with_layout(emitter: Emitter, node: fx.Node, value: torch.Tensor) -> fx.Node:
    """The node, copied where its strides may differ from those of a fake tensor."""
    if layout_of(node.meta.get("val")) == layout_of(value):
        return node
    order = dense_order(value)
    if order is None:
        # Expanded or otherwise overlapping: the values in plain order are what can be promised.
        return node
    if order == list(range(value.dim())):
        return emitter.op(aten.clone.default, node, memory_format=torch.contiguous_format)
    inverse = [order.index(axis) for axis in range(len(order))]
    moved = emitter.op(aten.permute.default, node, order)
    dense = emitter.op(aten.clone.default, moved, memory_format=torch.contiguous_format)
    return emitter.op(aten.permute.default, dense, inverse)


def dense_order(value: torch.Tensor) -> list[int] | None:
    """Axes from the largest stride to the smallest, None where the tensor is not dense in that order."""
    sizes = [_hint(size) for size in value.shape]
    strides = [_hint(stride) for stride in value.stride()]
    order = sorted(range(value.dim()), key=lambda axis: (-strides[axis], -sizes[axis], axis))
    return order if _is_dense(sizes, strides, order) else None


def _is_dense(sizes: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    expected = 1
    for axis in reversed(order):
        if sizes[axis] != 1 and strides[axis] != expected:
            return False
        expected *= max(sizes[axis], 1)
    return True


def _hint(size: int | torch.SymInt) -> int:
    """The size, or the example that a symbolic one was traced with."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return int(hint) if hint is not None else 2


def _base(node: fx.Node) -> fx.Node:
    """The node whose memory a node's value may lie in: itself, unless it is a view."""
    while node.op == "call_function":
        sources = node.all_input_nodes
        if not sources or not _may_be_view(node):
            break
        node = sources[0]
    return node


def _may_be_view(node: fx.Node) -> bool:
    target = node.target
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target in (aten.reshape.default, aten.contiguous.default, aten._unsafe_view.default):
        return True
    return any(result.alias_info is not None for result in target._schema.returns)
