"""Inserts calls of kernels in place of nodes of a graph.

The functions that select kernels change an ATen graph with `meta["val"]` in place. Their argument `static`
holds the nodes that are the same in every call.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.lowering.fx_values import ORIGIN, only_user

HALF = (torch.float16, torch.bfloat16)


def has_cuda_kernels(value: torch.Tensor | None) -> bool:
    """True if cuDNN and cuBLAS have fused kernels for the dtype and device of this tensor."""
    return value is not None and value.device.type == "cuda" and value.dtype in (*HALF, torch.float32)


def first_result(node: fx.Node) -> fx.Node | None:
    """The first of several results of a call, if nobody reads the others, and it is read once."""
    reader = only_user(node)
    is_first = reader is not None and reader.target is operator.getitem and reader.args[1] == 0
    return reader if is_first else None


def insert_after(
    graph: fx.Graph, node: fx.Node, target: Any, args: tuple[Any, ...], **kwargs: Any
) -> fx.Node:
    """Insert a call that reads `node`, as early as possible, with the fake value and origin of `node`."""
    if node.op == "placeholder":
        place = graph.inserting_before(next(each for each in graph.nodes if each.op != "placeholder"))
    else:
        place = graph.inserting_after(node)
    with place:
        call = graph.call_function(target, args, kwargs)
    call.meta["val"] = node.meta.get("val")
    if ORIGIN in node.meta:
        call.meta[ORIGIN] = node.meta[ORIGIN]
    return call


def replace(graph: fx.Graph, first: fx.Node, last: fx.Node, target: Any, args: tuple[Any, ...]) -> fx.Node:
    """Replace the chain of nodes from `first` to `last` by one call, which is returned.

    Nodes with other readers stay.
    """
    with graph.inserting_before(last):
        call = graph.call_function(target, args)
    call.meta.update(last.meta)
    last.replace_all_uses_with(call)
    chain = [last]
    for node in chain:
        if node is not first:
            chain.extend(each for each in node.all_input_nodes if set(each.users) <= set(chain))
    origins = (name for node in reversed(chain) for name in node.meta.get(ORIGIN, ()))
    call.meta[ORIGIN] = tuple(dict.fromkeys(origins))
    for node in dict.fromkeys(chain):
        if not node.users and node.op == "call_function":
            graph.erase_node(node)
    return call
