"""Runs an ATen graph in one dtype: in float64, for the reference of the check, or with noise in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchrlopt.ops import traits
from torchrlopt.torch_private.pytree import tree_leaves, tree_map

aten = torch.ops.aten

# A pad brings a number of its own, which would be rounded.
MOVES = traits.MOVES - {aten.constant_pad_nd.default}
"""Operators that round nothing: what is narrow goes through them as it is."""


class InOneDtype(torch.fx.Interpreter):
    """Runs an ATen graph with every floating point tensor in one dtype.

    Tensors are cast where arithmetic reads them, so that no more of the weights is held twice than one
    operator reads: views of weights stay as they are, and so do the rows of an embedding. An operator without
    a kernel for the dtype runs in the one it was captured with.
    """

    def __init__(self, graph: torch.fx.GraphModule, dtype: torch.dtype) -> None:
        super().__init__(graph)
        self._dtype = dtype

    def run_node(self, n: torch.fx.Node) -> Any:
        """See the class."""
        if n.op != "call_function" or n.target is torch.ops.aten.view.dtype:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        assert callable(n.target)
        if n.target in MOVES and not any(map(self._is_cast, tree_leaves((args, kwargs)))):
            return n.target(*args, **kwargs)
        try:
            return n.target(*tree_map(self.cast, args), **tree_map(self.cast, kwargs))
        except (RuntimeError, TypeError, ValueError):
            narrow = torch.fx.node.map_arg(
                (n.args, n.kwargs), lambda a: _narrowed(self.env[a], a.meta["val"])
            )
            return n.target(*narrow[0], **narrow[1])

    def cast(self, leaf: Any) -> Any:
        """A floating or complex tensor, or such a dtype, widened or narrowed; others as they are."""
        if isinstance(leaf, torch.Tensor):
            return leaf.to(self._of(leaf.dtype))
        return self._of(leaf) if isinstance(leaf, torch.dtype) else leaf

    def _of(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of the run for values of this one; integers stay."""
        if dtype.is_complex:
            return self._dtype.to_complex()
        return self._dtype if dtype.is_floating_point else dtype

    def _is_cast(self, leaf: Any) -> bool:
        return isinstance(leaf, torch.Tensor) and leaf.dtype in (self._dtype, self._dtype.to_complex())


def _narrowed(value: Any, meta: Any) -> Any:
    """The value in the dtype the captured graph has there."""
    if isinstance(value, (tuple, list)):
        return type(value)(_narrowed(v, m) for v, m in zip(value, meta, strict=True))
    is_cast = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
    return value.to(meta.dtype) if is_cast else value


def float64_reference(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Outputs of the ATen graph computed in float64 (integer outputs in their own dtype)."""
    run = InOneDtype(graph, torch.float64)
    with torch.no_grad():
        return tuple(map(run.cast, run.run(*inputs)))
