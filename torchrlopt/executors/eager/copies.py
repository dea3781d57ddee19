"""Removes redundant copies."""

from __future__ import annotations

import torch
from torch import fx

from torchrlopt.executors.lowering.fx_values import is_mutable
from torchrlopt.executors.weights.split_fx import reaching_output


def drop_copies(graph: fx.Graph) -> None:
    """Remove copies that keep the strides of the original (such as those left by a dropout).

    A copy stays if an output may share memory with it, because the caller may write to the output. If the
    graph mutates its own values, all copies stay.
    """
    if any(is_mutable(node) for node in graph.nodes):
        return
    returned = reaching_output(graph)
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
        if len(node.args) == 1 and not node.kwargs and node not in returned:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
