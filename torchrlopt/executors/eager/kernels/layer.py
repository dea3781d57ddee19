"""The kernel layer of the eager executor: which ATen or oneDNN call computes each part of a lowered graph.

Runs on a lowered graph before its weight prologue is split off: the packing calls it inserts depend on
weights only, so the split moves them to the prologue together with all other expressions over weights.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

from torchrlopt.executors.eager.finiteness import finite_nodes
from torchrlopt.executors.eager.kernels.convolution import select_convolutions
from torchrlopt.executors.eager.kernels.linear import select_linears
from torchrlopt.executors.eager.layout import propagate
from torchrlopt.executors.lowering.fx_values import is_mutable, static_nodes
from torchrlopt.executors.weights.split_fx import reaching_output


def select_kernels(module: fx.GraphModule, static: Collection[str], assume_finite: bool = False) -> None:
    """Give convolutions and linears their packed, fused forms, in place; the code is not generated anew.

    Outputs keep values, dtypes, shapes and strides; calls that are not of float32 (or bfloat16 where oneDNN
    has it) on the CPU, and those too small to gain, stay as they are.

    Args:
        module: an ATen graph; every node carries `meta["val"]`, a tensor (fake or real) with the strides the
            original program gives it. A product that lacks one is left alone, and so are all convolutions as
            soon as any node lacks one.
        static: names of the placeholders whose values stay the same between calls (weights, or what a
            prologue made of them).
        assume_finite: whether activations may be fused that are right for finite operands only; the caller
            looks at inputs and weights then, and runs `epilogues.taken_apart` where one is not finite.
    """
    graph = module.graph
    _drop_copies(graph)
    finite = finite_nodes(graph, static_nodes(graph, static)) if assume_finite else frozenset()
    select_linears(graph, static_nodes(graph, static), finite)
    # Layouts can be restored only where the strides to restore are known.
    if all("val" in node.meta for node in graph.nodes if node.op in ("placeholder", "call_function")):
        propagate(graph, select_convolutions(graph, static_nodes(graph, static), finite))
    graph.eliminate_dead_code()
    graph.lint()


def _drop_copies(graph: fx.Graph) -> None:
    """Read the original in place of a copy that keeps its strides (what is left of a dropout).

    Copies stay where an output may share memory with them, as the caller may write to it, and in a graph
    that writes to its values.
    """
    if any(is_mutable(node) for node in graph.nodes):
        return
    needed = reaching_output(graph)
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
        if len(node.args) == 1 and not node.kwargs and node not in needed:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
