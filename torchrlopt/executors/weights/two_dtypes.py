"""Copies a graph while some of its calls change to another dtype.

Each value is cast at most once, where it is first read in a dtype in which it was not computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.lowering.fx_values import ORIGIN, tensor_of
from torchrlopt.torch_private.pytree import tree_map_only
from torchrlopt.torch_private.tensors import FakeTensor, dim_of

aten = torch.ops.aten


class TwoDtypes:
    """The copy of a graph; each value exists in its own dtype, in the other one, or in both.

    The caller walks over the old graph and copies each node, in order, either way.

    Args:
        changes: whether tensors of a dtype change to the other one; all else stays.
        other: the other dtype.
        fakes: fake tensors made for other copies with the same arguments; added to.

    Attributes:
        graph: the copy.
        own: nodes of the copy by those of the old graph, in the dtypes of the latter.
        other: likewise, in the other dtype.
    """

    def __init__(
        self,
        changes: Callable[[torch.dtype], bool],
        other: torch.dtype,
        fakes: dict[Any, torch.Tensor] | None = None,
    ) -> None:
        self.graph = fx.Graph()
        self.own: dict[fx.Node, fx.Node] = {}
        self.other: dict[fx.Node, fx.Node] = {}
        self._changes, self._dtype = changes, other
        # One for all values of the same sizes: each costs 0.1 ms.
        self._fakes: dict[Any, torch.Tensor] = {} if fakes is None else fakes

    def copy(self, node: fx.Node) -> fx.Node:
        """Copy a node as it is."""
        self.own[node] = self.graph.node_copy(node, self.in_own)
        return self.own[node]

    def copy_in_other(self, node: fx.Node) -> fx.Node:
        """Copy a call so that it computes in the other dtype."""
        call = self.other[node] = self.graph.node_copy(node, self.in_other)
        dtype = call.kwargs.get("dtype")
        if isinstance(dtype, torch.dtype) and self._changes(dtype):
            call.update_kwarg("dtype", self._dtype)
        call.meta["val"] = tree_map_only(torch.Tensor, self._as_other, node.meta["val"])
        value = tensor_of(node)
        if value is not None and not self._changes(value.dtype):  # the indices of a max pool
            self.own[node] = call
        return call

    def in_own(self, node: fx.Node) -> fx.Node:
        """A value in its own dtype."""
        if node not in self.own:
            self.own[node] = self._cast(node, self.other[node], node.meta["val"])
        return self.own[node]

    def in_other(self, node: fx.Node) -> fx.Node:
        """A value in the other dtype, if its own is one that changes."""
        if node not in self.other:
            value = tensor_of(node)
            if value is None or not self._changes(value.dtype):
                return self.in_own(node)
            self.other[node] = self._cast(node, self.own[node], self._as_other(value))
        return self.other[node]

    def _as_other(self, value: torch.Tensor) -> torch.Tensor:
        """A fake tensor like this one, in the other dtype if its own changes."""
        if not self._changes(value.dtype):
            return value
        key = (value.device, *map(dim_of, (*value.shape, *value.stride())))
        if key not in self._fakes:
            with value.fake_mode if isinstance(value, FakeTensor) else contextlib.nullcontext():
                self._fakes[key] = torch.empty_like(value, dtype=self._dtype)  # strides are those of `to`
        return self._fakes[key]

    def _cast(self, node: fx.Node, source: fx.Node, value: torch.Tensor) -> fx.Node:
        call = self.graph.call_function(aten._to_copy.default, (source,), {"dtype": value.dtype})
        call.meta["val"] = value
        if ORIGIN in node.meta:
            call.meta[ORIGIN] = node.meta[ORIGIN]
        return call
