"""Repairs deviations from the standard that runtimes tolerate, before the file is read."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

import onnx

from torchrlopt.onnx.opsets import OLDEST_IR_VERSION, STANDARD_DOMAINS
from torchrlopt.onnx.subgraphs import inside, nested


def repaired(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without the faults that ONNX Runtime, which loads most files, tolerates.

    Nodes are sorted. A custom domain that is used but not imported is imported in version 1. A file of format
    3, in which initializers must be inputs, becomes one of format 4 if they are not.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    of_functions = (node for function in copy.functions for node in function.node)
    graphs = [*nested(copy.graph), *(graph for node in of_functions for graph in inside(node))]
    for holder in (*reversed(graphs), *copy.functions):  # inner ones first: sorting copies nodes
        _sort(holder)
    imported = {entry.domain for entry in copy.opset_import}
    used = {node.domain for graph in graphs for node in graph.node}
    for domain in sorted(used - imported - set(STANDARD_DOMAINS)):
        copy.opset_import.add(domain=domain, version=1)
    inputs = {value.name for value in copy.graph.input}
    is_hidden = not {tensor.name for tensor in copy.graph.initializer} <= inputs
    if is_hidden and copy.ir_version == OLDEST_IR_VERSION - 1:
        copy.ir_version = OLDEST_IR_VERSION
    return copy


def _sort(holder: onnx.GraphProto | onnx.FunctionProto) -> None:
    """Sort nodes topologically; leaves cycles unchanged.

    The sort is stable: of the nodes that are ready, the first in the list comes next.
    """
    nodes: Sequence[onnx.NodeProto] = holder.node
    maker = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    waits = {
        index: {maker[name] for name in _reads(node) if name in maker} for index, node in enumerate(nodes)
    }
    if all(before < index for index, found in waits.items() for before in found):
        return
    sorter = TopologicalSorter(waits)
    try:
        sorter.prepare()
    except CycleError:
        return
    ready = sorted(sorter.get_ready())
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
        for index in sorter.get_ready():
            heapq.heappush(ready, index)
    copies = [onnx.NodeProto.FromString(nodes[index].SerializeToString()) for index in order]
    del holder.node[:]
    holder.node.extend(copies)


def _reads(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, including those in its subgraphs."""
    names = set(node.input)
    for graph in inside(node):
        names |= {name for inner in graph.node for name in inner.input}
        names |= {value.name for value in graph.output}
    return names
