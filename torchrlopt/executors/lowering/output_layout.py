"""Gives the outputs of a graph the strides of the original, and separate memory where needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from torchrlopt.capture.real_strides import CORRECTED
from torchrlopt.capture.sharing import base_of, hint, is_apart
from torchrlopt.errors import UnsupportedError
from torchrlopt.executors.lowering.symbols import number_of
from torchrlopt.ops.emitter import Emitter, aten
from torchrlopt.torch_private.tensors import dim_of


def layout_of(value: Any) -> Any:
    """Comparable strides, symbolic ones as text; None if the value is not a tensor."""
    if not isinstance(value, torch.Tensor):
        return None
    # The stride of a dimension with one element is irrelevant to the layout.
    return tuple(
        None if isinstance(size, int) and size == 1 else dim_of(stride)
        for size, stride in zip(value.shape, value.stride(), strict=True)
    )


class OutputEmitter:
    """Adds the outputs of one graph.

    Args:
        emitter: the graph.
        placeholders: its arguments, by name.
        scalar: maps an original node that is not a tensor to the current one, or None if there is none.
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
        self._returned: dict[fx.Node, fx.Node] = {}  # keyed by the nodes that the original returns

    def matched(self, results: Mapping[fx.Node, fx.Node]) -> dict[fx.Node, fx.Node]:
        """The nodes to return in place of the original outputs.

        They have the original's strides, and separate memory wherever the original's do.

        Args:
            results: maps the original output nodes to the current nodes with their values.
        """
        # Process bases before their views.
        order = sorted(results, key=lambda source: base_of(source) is not source)
        return {source: self._matched(results[source], source) for source in order}

    def _matched(self, node: fx.Node, source: fx.Node) -> fx.Node:
        if not isinstance(source.meta.get("val"), torch.Tensor):
            return node
        theirs = base_of(source)
        whole = self._returned.get(theirs)
        if whole is not None and theirs is not source:
            view = self._viewed(source, theirs, whole)
            if view is None:
                raise UnsupportedError(
                    "outputs share memory, and what their views are made with is not known here",
                    where=source.name,
                )
            self._returned[source] = view
            return view
        node = with_layout(self._emitter, node, source.meta["val"])
        if CORRECTED in source.meta:  # the current node's fake value may be as wrong
            node = _in_real_layout(self._emitter, node, source.meta["val"])
        mine = base_of(node)
        # A caller may write to an output; that must not change an input, a constant or another output.
        if mine in self._inputs:
            shares = theirs.op == "placeholder" and theirs.name == mine.name
        elif mine.op == "get_attr":
            shares = theirs.op == "get_attr"
        else:
            shares = self._owners.setdefault(mine, theirs) is theirs
        if not shares:  # the copy may have other strides
            copied = self._emitter.op(aten.clone.default, node)
            node = with_layout(self._emitter, copied, source.meta["val"])
        self._returned[source] = node
        return node

    def view_of_input(self, source: fx.Node) -> fx.Node | None:
        """The views through which the original returns an input, replayed; None for any other result.

        Writing to such an output writes to the input.
        """
        base = base_of(source)
        return self._viewed(source, base, self._placeholders[base.name]) if base.op == "placeholder" else None

    def _viewed(self, source: fx.Node, base: fx.Node, node: fx.Node) -> fx.Node | None:
        """Replay on `node` the views through which the original derives `source` from `base`."""
        if source is base:
            return node
        first, *others = source.all_input_nodes
        operands = {first: self._viewed(first, base, node)} | {other: self._scalar(other) for other in others}
        known = {old: new for old, new in operands.items() if new is not None}
        if len(known) < len(operands):
            return None
        return self._emitter.graph.node_copy(source, known.__getitem__)


def with_layout(emitter: Emitter, node: fx.Node, value: torch.Tensor) -> fx.Node:
    """The node, copied if its strides may differ from those of a fake tensor."""
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


def _in_real_layout(emitter: Emitter, node: fx.Node, value: torch.Tensor) -> fx.Node:
    """The node, copied at run time if it is not in the layout of `value`."""
    layouts = (torch.contiguous_format, torch.channels_last if value.dim() == 4 else torch.channels_last_3d)
    for layout in layouts:
        if value.is_contiguous(memory_format=layout):
            made = emitter.op(aten.contiguous.default, node, memory_format=layout)
            made.meta["val"] = value
            return made
    return node


def _with_strides(emitter: Emitter, node: fx.Node, value: torch.Tensor) -> fx.Node:
    """A copy with gaps between its elements, as in a slice of a larger tensor, or expanded along axes."""
    strides = [number_of(emitter, stride) for stride in value.stride()]
    if value.layout != torch.strided or not is_apart(value) or None in strides:
        # Elements overlap: only the values can be guaranteed, in plain order.
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


def dense_order(value: torch.Tensor) -> list[int] | None:
    """Axes from the largest stride to the smallest; None if the tensor is not dense in that order."""
    sizes = [hint(size) for size in value.shape]
    strides = [hint(stride) for stride in value.stride()]
    order = sorted(range(value.dim()), key=lambda axis: (-strides[axis], -sizes[axis], axis))
    return order if _is_dense(sizes, strides, order) else None


def _is_dense(sizes: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    expected = 1
    for axis in reversed(order):
        if sizes[axis] != 1 and strides[axis] != expected:
            return False
        expected *= max(sizes[axis], 1)
    return True
