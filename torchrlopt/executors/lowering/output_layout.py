"""Gives the outputs of a lowered graph the strides of the original, and memory of their own where needed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.lowering.converters.emitter import Emitter, aten
from torchrlopt.executors.lowering.fx_values import dim_key, gives_new_memory
from torchrlopt.executors.lowering.symbols import number_of


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
        placeholders: its arguments, by name.
        scalar: the present node for an original one that is no tensor, None where there is none.
    """

    def __init__(
        self,
        emitter: Emitter,
        placeholders: Mapping[str, fx.Node],
        scalar: Callable[[fx.Node], fx.Node | None],
    ) -> None:
        self._emitter = emitter
        self._placeholders = placeholders
        self._scalar = scalar
        self._inputs = frozenset(placeholders.values())
        self._owners: dict[fx.Node, fx.Node] = {}
        self._returned: dict[fx.Node, fx.Node] = {}  # by what the original returns

    def matched(self, results: Mapping[fx.Node, fx.Node]) -> dict[fx.Node, fx.Node]:
        """The nodes to return where the original returns these.

        They have the original's strides, and memory of their own where the original's have.

        Args:
            results: by the original output nodes, the present nodes with the values.
        """
        # What others are views of comes first.
        order = sorted(results, key=lambda source: _base(source) is not source)
        return {source: self._matched(results[source], source) for source in order}

    def _matched(self, node: fx.Node, source: fx.Node) -> fx.Node:
        if not isinstance(source.meta.get("val"), torch.Tensor):
            return node
        theirs = _base(source)
        whole = self._returned.get(theirs)
        if whole is not None and theirs is not source and _base(node) is not _base(whole):
            node = self._viewed(source, theirs, whole) or node
        node = with_layout(self._emitter, node, source.meta["val"])
        mine = _base(node)
        # A caller may write to an output: it must not reach an input, a constant or another output by that.
        if mine in self._inputs:
            shares = theirs.op == "placeholder" and theirs.name == mine.name
        elif mine.op == "get_attr":
            shares = theirs.op == "get_attr"
        else:
            shares = self._owners.setdefault(mine, theirs) is theirs
        node = node if shares else self._emitter.op(aten.clone.default, node)
        self._returned[source] = node
        return node

    def view_of_input(self, source: fx.Node) -> fx.Node | None:
        """The views through which the original returns an input, as they are; None for any other result.

        Whoever writes to such an output writes to the input.
        """
        base = _base(source)
        return self._viewed(source, base, self._placeholders[base.name]) if base.op == "placeholder" else None

    def _viewed(self, source: fx.Node, base: fx.Node, node: fx.Node) -> fx.Node | None:
        """The views through which the original makes `source` of `base`, of `node` in the place of that."""
        if source is base:
            return node
        first, *others = source.all_input_nodes
        operands = {first: self._viewed(first, base, node)} | {other: self._scalar(other) for other in others}
        known = {old: new for old, new in operands.items() if new is not None}
        if len(known) < len(operands):
            return None
        return self._emitter.graph.node_copy(source, known.__getitem__)


def with_layout(emitter: Emitter, node: fx.Node, value: torch.Tensor) -> fx.Node:
    """The node, copied where its strides may differ from those of a fake tensor."""
    if layout_of(node.meta.get("val")) == layout_of(value):
        return node
    order = dense_order(value)
    if order is None:
        return _with_strides(emitter, node, value)
    if order == list(range(value.dim())):
        return emitter.op(aten.clone.default, node, memory_format=torch.contiguous_format)
    inverse = [order.index(axis) for axis in range(len(order))]
    moved = emitter.op(aten.permute.default, node, order)
    dense = emitter.op(aten.clone.default, moved, memory_format=torch.contiguous_format)
    return emitter.op(aten.permute.default, dense, inverse)


def _with_strides(emitter: Emitter, node: fx.Node, value: torch.Tensor) -> fx.Node:
    """A copy with gaps between its elements, as a slice of a larger tensor has, or expanded along axes."""
    strides = [number_of(emitter, stride) for stride in value.stride()]
    if value.layout != torch.strided or not is_apart(value) or None in strides:
        # Elements that overlap: the values in plain order are what can be promised.
        return node
    repeated = [axis for axis, stride in enumerate(strides) if stride == 0]
    once = node
    for axis in repeated:
        once = emitter.op(aten.slice.Tensor, once, axis, 0, 1)
    memory = emitter.op(
        aten.empty_strided.default, emitter.shape(once), strides, dtype=value.dtype, device=value.device
    )
    copied = emitter.op(aten.copy.default, memory, once)
    return emitter.op(aten.expand.default, copied, emitter.shape(node)) if repeated else copied


def is_apart(value: torch.Tensor) -> bool:
    """Whether no two elements lie in one place but those along an expanded axis."""
    reach = 1  # of the axes with smaller strides
    axes = [(_hint(stride), _hint(size)) for size, stride in zip(value.shape, value.stride(), strict=True)]
    for stride, size in sorted(axes):
        if stride == 0 or size == 1:
            continue
        if stride < reach:
            return False
        reach += stride * (size - 1)
    return True


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
        if not sources or not _may_be_view(node) or gives_new_memory(sources[0]):
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
