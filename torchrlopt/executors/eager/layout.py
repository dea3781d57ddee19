"""Keeps channels_last between packed convolutions and restores the strides of every output.

A packed convolution writes channels_last whatever it reads. Operators that keep the layout of their input
propagate it. The graph's outputs, and operators not known to accept any strides, get the strides of the
original program. Mixing layouts in one elementwise operator is 18 times slower (0.70 against 0.04 ms for 256
x 56 x 56), so the operand that differs is converted.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.eager.kernels import cudnn, packing
from torchrlopt.executors.eager.kernels.convolution import needs_channels_last
from torchrlopt.executors.eager.kernels.operators import CONV, LINEAR, SHUFFLE
from torchrlopt.executors.eager.kernels.selection import insert_after, replace
from torchrlopt.executors.eager.kernels.shuffles import shuffle_at
from torchrlopt.executors.lowering.fx_values import (
    arguments,
    cast_to,
    is_contiguous,
    is_elementwise,
    is_mutable,
    shape_key,
    static_shape,
    static_stride,
    tensor_of,
)
from torchrlopt.executors.lowering.strides import reorder, restride
from torchrlopt.ops.traits import MOVES, PRODUCTS, VIEWS
from torchrlopt.torch_private.operators import OpOverload, schema_of

aten = torch.ops.aten


class _Layout(enum.Enum):
    """The memory layout of a value compared with the original program."""

    ORIGINAL = enum.auto()
    CHANNELS_LAST = enum.auto()
    OTHER = enum.auto()


# Operators with one image-like operand, whose result has the operand's layout.
_FOLLOWING = frozenset(
    {
        "max_pool2d_with_indices", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d",
        "upsample_nearest2d", "upsample_bilinear2d", "constant_pad_nd", "batch_norm", "slice",
        "_native_batch_norm_legit_no_training", "native_batch_norm", "_batch_norm_no_update", "split",
        "split_with_sizes", "chunk", "convolution", "conv2d", "reflection_pad2d", "replication_pad2d",
    }
)  # fmt: skip

# These, moves and products compute the same values for any strides. The layout of their results is not
# tracked: it is OTHER.
_ANY_STRIDES = frozenset(
    {
        "mean", "sum", "amax", "amin", "max", "min", "var", "var_mean", "argmax", "argmin", "prod",
        "_softmax", "softmax", "_log_softmax", "log_softmax", "native_layer_norm", "layer_norm", "group_norm",
        "_to_copy", "to", "topk", "cumsum", "upsample_bicubic2d", "_linear_pointwise",
    }
)  # fmt: skip


# Accept any order of axes, but no gaps between the elements.
_DENSE = frozenset({"native_group_norm"})

# Position of the residual that a convolution adds; the argument may be None.
_ADDED: dict[Any, int] = {packing.CONVOLUTION_ADD: 1, cudnn.ADD_RELU: 2, CONV: 2}

# Operators whose result is contiguous whatever the strides of their operands.
_CONTIGUOUS_RESULT = frozenset({"mm", "addmm", "bmm", "baddbmm", "_linear_pointwise"})


def propagate(graph: fx.Graph, calls: Collection[fx.Node]) -> frozenset[fx.Node]:
    """Propagate channels_last from the packed convolutions and restore strides where needed, in place.

    Args:
        graph: an ATen graph in which `calls` are packed convolutions; `meta["val"]` carries the strides of
            the original program everywhere.
        calls: the packed convolutions.

    Returns:
        The nodes whose values are in channels_last, after packed convolutions.
    """
    if not calls:
        return frozenset()
    pass_ = _Propagation(graph, frozenset(calls))
    for node in list(graph.nodes):
        pass_.visit(node)
    return pass_.in_channels_last()


class _Propagation:
    """One walk over the graph in order; records each node's layout and the conversions made."""

    def __init__(self, graph: fx.Graph, calls: frozenset[fx.Node]) -> None:
        self._graph = graph
        self._calls = calls
        self._layout: dict[fx.Node, _Layout] = {}
        self._channels_last: dict[fx.Node, fx.Node] = {}
        self._restored: dict[fx.Node, fx.Node] = {}

    def visit(self, node: fx.Node) -> None:
        """Decide the layout of a node whose inputs are decided, converting inputs as needed."""
        if node.op == "output":
            node.args = fx.map_arg(node.args, self._restore)
        elif node in self._calls:
            self._visit_packed(node)
        elif (found := shuffle_at(node)) is not None and self._of(found.image) is _Layout.CHANNELS_LAST:
            # The views and the permutation would leave channels_last.
            call = replace(self._graph, found.first, node, SHUFFLE, (found.image, found.groups))
            self._layout[call] = _Layout.CHANNELS_LAST
        elif any(self._of(source) is not _Layout.ORIGINAL for source in node.all_input_nodes):
            self._visit_changed(node)

    def in_channels_last(self) -> frozenset[fx.Node]:
        """The nodes of the current graph whose values are in channels_last."""
        kept = self._graph.nodes
        return frozenset(node for node in kept if self._of(node) is _Layout.CHANNELS_LAST)

    def _of(self, node: fx.Node) -> _Layout:
        return self._layout.get(node, _Layout.ORIGINAL)

    def _visit_packed(self, node: fx.Node) -> None:
        x = node.args[0]
        assert isinstance(x, fx.Node)
        reads_any = node.target is CONV and not needs_channels_last(node)
        if self._of(x) is _Layout.ORIGINAL and not reads_any:
            node.replace_input_with(x, self._to_channels_last(x))
        if node.target in _ADDED:
            other = node.args[_ADDED[node.target]]
            if isinstance(other, fx.Node) and self._of(other) is not _Layout.CHANNELS_LAST:
                node.replace_input_with(other, self._to_channels_last(other))
        self._layout[node] = _Layout.CHANNELS_LAST

    def _visit_changed(self, node: fx.Node) -> None:
        name = _name(node)
        if name == "sym_size":
            return
        changed = [source for source in node.all_input_nodes if self._of(source) is not _Layout.ORIGINAL]
        if is_contiguous(node) and _writes_contiguous(node):
            self._layout[node] = _Layout.ORIGINAL
        elif is_elementwise(node.target) or name == "cat" or cast_to(node) is not None:
            self._visit_joining(node)
        elif name in _FOLLOWING and node.args and node.args[0] in changed:
            self._layout[node] = self._of(changed[0]) if changed == [node.args[0]] else _Layout.OTHER
        elif name == "getitem":
            self._layout[node] = self._of(changed[0])
        elif node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default
            self._layout[node] = _Layout.OTHER
        elif name in _DENSE:
            self._visit_dense(node)
        elif name in _ANY_STRIDES or node.target in MOVES or node.target in PRODUCTS or is_mutable(node):
            self._layout[node] = _Layout.OTHER
        else:
            node.args = fx.map_arg(node.args, self._restore)
            node.kwargs = fx.map_arg(node.kwargs, self._restore)

    def _visit_joining(self, node: fx.Node) -> None:
        """Convert the large operands of an elementwise operator or a cat to the same layout."""
        large = [source for source in node.all_input_nodes if self._is_large(source, node)]
        if not any(self._of(source) is _Layout.CHANNELS_LAST for source in large):
            self._layout[node] = _Layout.OTHER
            return
        for source in large:
            if self._of(source) is not _Layout.CHANNELS_LAST:
                node.replace_input_with(source, self._to_channels_last(source))
        self._layout[node] = _Layout.CHANNELS_LAST

    def _visit_dense(self, node: fx.Node) -> None:
        x = node.args[0]
        assert isinstance(x, fx.Node)
        if self._of(x) is not _Layout.CHANNELS_LAST:
            node.replace_input_with(x, self._restore(x))
            return
        if x.target in VIEWS:  # a slice of an image's channels has gaps between the pixels
            node.replace_input_with(x, self._copied(x, torch.channels_last))
        self._layout[node] = _Layout.OTHER

    def _is_large(self, source: fx.Node, node: fx.Node) -> bool:
        """True for an operand that determines the result's layout, that is, one that is not broadcast."""
        if _name(node) == "cat":
            return len(shape_key(source) or ()) == len(shape_key(node) or ())
        return shape_key(source) == shape_key(node)

    def _to_channels_last(self, node: fx.Node) -> fx.Node:
        """The node's value in channels_last, converted once for all its readers."""
        if node not in self._channels_last:
            shape = static_shape(node)
            if shape is not None and (math.prod(shape[2:]) == 1 or shape[1] == 1):
                return node  # both layouts are the same in memory
            rank = len(shape_key(node) or ())
            layout = torch.channels_last if rank == 4 else torch.channels_last_3d
            self._channels_last[node] = self._copied(node, layout)
        return self._channels_last[node]

    def _copied(self, node: fx.Node, layout: torch.memory_format) -> fx.Node:
        """The node's value without gaps in this layout of channels_last."""
        call = insert_after(self._graph, node, aten.contiguous.default, (node,), memory_format=layout)
        self._layout[call] = _Layout.CHANNELS_LAST
        return call

    def _restore(self, node: fx.Node) -> fx.Node:
        """The node's value with the strides of the original program."""
        if self._of(node) is _Layout.ORIGINAL:
            return node
        if node not in self._restored:
            if node.target in VIEWS and not _makes_tensors(node):
                with self._graph.inserting_after(node):
                    copy = self._graph.node_copy(node, self._restore)
            else:
                copy = self._restrided(node)
            self._restored[node] = copy
        return self._restored[node]

    def _restrided(self, node: fx.Node) -> fx.Node:
        stride = static_stride(node)
        if stride is not None:
            return insert_after(self._graph, node, restride, (node, stride))
        if is_contiguous(node):
            return insert_after(self._graph, node, aten.contiguous.default, (node,))
        return insert_after(self._graph, node, reorder, (node, _outer_first(node)))


def _name(node: fx.Node) -> str:
    """The operator's name without namespace and overload; `getitem` for a projection; otherwise empty."""
    if node.target is LINEAR:
        return "_linear_pointwise"
    if node.target is aten.view.dtype:
        return ""  # reinterprets the bytes, so the result depends on the layout
    if isinstance(node.target, OpOverload):
        return schema_of(node.target).name.rpartition("::")[2]
    return "getitem" if getattr(node.target, "__name__", "") == "getitem" else ""


def _writes_contiguous(node: fx.Node) -> bool:
    """True for a call whose result is contiguous whatever the strides of its operands."""
    name = _name(node)
    if name == "cat":
        return len(shape_key(node) or ()) not in (4, 5)  # 4-D and 5-D results may be channels_last
    if name in ("clone", "contiguous"):
        return arguments(node)["memory_format"] is torch.contiguous_format
    return name in _CONTIGUOUS_RESULT


def _makes_tensors(node: fx.Node) -> bool:
    """True for a projection of a call that creates new tensors, such as the values of a max pool."""
    return _name(node) == "getitem" and node.args[0].target not in VIEWS  # type: ignore[union-attr]


def _outer_first(node: fx.Node) -> list[int]:
    """The dimensions by decreasing stride; symbolic strides count by their hints."""
    value = tensor_of(node)
    assert value is not None
    hints = [s if isinstance(s, int) else s.node.hint or 1 for s in value.stride()]
    return sorted(range(len(hints)), key=lambda axis: (-hints[axis], axis))
