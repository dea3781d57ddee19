"""Finds the dtype in which each output of a graph was computed: a cast to a wider one restores no digits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from torchrlopt.judge.float64 import MOVES
from torchrlopt.torch_private.pytree import tree_leaves


def computed_in(graph: fx.GraphModule) -> tuple[torch.dtype | None, ...]:
    """Return, for each output, the least precise floating dtype of all arithmetic that it depends on.

    Inputs count as exact, and operators that only move elements do not round. None for an output without
    floating point arithmetic, and for one that is not a tensor.
    """
    found: dict[fx.Node, torch.dtype | None] = {}
    for node in graph.graph.nodes:
        dtypes = [found[each] for each in node.all_input_nodes]
        value = node.meta.get("val")
        if node.op == "call_function" and node.target not in MOVES:
            dtypes += _dtypes(value)
        # A flag or an index is either right or wrong: its readers do not inherit the precision it came from.
        is_exact = isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
        found[node] = None if is_exact else _coarsest(dtypes)
    (output,) = graph.graph.find_nodes(op="output")
    return tuple(found[each] if isinstance(each, fx.Node) else None for each in output.args[0])


def _dtypes(value: Any) -> list[torch.dtype]:
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return [each.dtype for each in tensors if each.is_floating_point()]


def _coarsest(dtypes: Iterable[torch.dtype | None]) -> torch.dtype | None:
    known = [each for each in dtypes if each is not None]
    return max(known, key=lambda each: torch.finfo(each).eps, default=None)
