"""Runs an ATen graph in one dtype: in float64 for the reference of the check, in float32 with noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchrlopt.ops import traits
from torchrlopt.torch_private.pytree import tree_leaves, tree_map

aten = torch.ops.aten

# A pad inserts a constant of its own, which would be rounded.
MOVES = traits.MOVES - {aten.constant_pad_nd.default}
"""Operators that round nothing: they move narrow values without a cast."""


class InOneDtype(torch.fx.Interpreter):
    """Runs an ATen graph with every floating point tensor in one dtype.

    Tensors are cast when arithmetic reads them, so that only the weights of one operator are held twice:
    views of weights and the rows of an embedding keep their dtype. An operator without a kernel for the dtype
    runs in the dtype it was captured with.
    """

    def __init__(self, graph: torch.fx.GraphModule, dtype: torch.dtype) -> None:
        super().__init__(graph)
        self._dtype = dtype

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node in the dtype, or in the captured dtype if there is no kernel for it."""
        if n.op != "call_function" or n.target is torch.ops.aten.view.dtype:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        assert callable(n.target)
        if n.target in MOVES and not any(map(self._is_cast, tree_leaves((args, kwargs)))):
            return n.target(*args, **kwargs)
        try:
            return n.target(*tree_map(self.cast, args), **tree_map(self.cast, kwargs))
        except (AssertionError, RuntimeError, TypeError, ValueError):  # quantisation asserts float32
            narrow = torch.fx.node.map_arg(
                (n.args, n.kwargs), lambda a: _narrowed(self.env[a], a.meta["val"])
            )
            return n.target(*narrow[0], **narrow[1])

    def cast(self, leaf: Any) -> Any:
        """Cast a floating or complex tensor, or such a dtype; return anything else unchanged."""
        if isinstance(leaf, torch.Tensor):
            return leaf.to(self._of(leaf.dtype))
        return self._of(leaf) if isinstance(leaf, torch.dtype) else leaf

    def _of(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype in which values of this dtype are computed; integers keep theirs."""
        if dtype.is_complex:
            return self._dtype.to_complex()
        return self._dtype if dtype.is_floating_point else dtype

    def _is_cast(self, leaf: Any) -> bool:
        return isinstance(leaf, torch.Tensor) and leaf.dtype in (self._dtype, self._dtype.to_complex())


def _narrowed(value: Any, meta: Any) -> Any:
    """Cast the value to the dtype that the captured graph has for it."""
    if isinstance(value, (tuple, list)):
        return type(value)(_narrowed(v, m) for v, m in zip(value, meta, strict=True))
    is_cast = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
    return value.to(meta.dtype) if is_cast else value


def float64_reference(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Outputs of the ATen graph computed in float64 (integer outputs in their own dtype)."""
    run = InOneDtype(graph, torch.float64)
    with torch.no_grad():
        return tuple(map(run.cast, run.run(*inputs)))
