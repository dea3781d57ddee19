"""In which dtype were the outputs of a graph computed? A cast to a wider one brings no digits back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from torchrlopt.judge.float64 import MOVES
from torchrlopt.torch_private.pytree import tree_leaves


def computed_in(graph: fx.GraphModule) -> tuple[torch.dtype | None, ...]:
    """For each output the floating dtype with the fewest digits among all arithmetic that it hangs on.

    Inputs count as exact, and what only moves elements rounds nothing. None where no arithmetic is in
    floating numbers, and for outputs that are no tensors.
    """
    found: dict[fx.Node, torch.dtype | None] = {}
    for node in graph.graph.nodes:
        dtypes = [found[each] for each in node.all_input_nodes]
        value = node.meta.get("val")
        if node.op == "call_function" and node.target not in MOVES:
            dtypes += _dtypes(value)
        # A flag or an index is right or wrong: what it was computed in is not what its readers are.
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
