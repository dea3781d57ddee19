"""Subgraphs of nodes, such as the bodies of If, Loop and Scan: for protobuf messages and onnx_ir nodes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir


def nested(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and all graphs nested in it, outer before inner."""
    yield graph
    for node in graph.node:
        yield from inside(node)


def inside(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The subgraphs of a node, including nested ones."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield from nested(attribute.g)
        for graph in attribute.graphs:
            yield from nested(graph)


def subgraphs(node: onnx_ir.Node) -> list[onnx_ir.Graph]:
    """The direct subgraphs of a node."""
    return [graph for attribute in node.attributes.values() for graph in of_attribute(attribute)]


def of_attribute(attribute: onnx_ir.Attr) -> tuple[onnx_ir.Graph, ...]:
    """The subgraphs that an attribute holds."""
    if attribute.type == onnx_ir.AttributeType.GRAPH:
        return (attribute.as_graph(),)
    return tuple(attribute.as_graphs()) if attribute.type == onnx_ir.AttributeType.GRAPHS else ()


def outer_values(node: onnx_ir.Node) -> Iterator[onnx_ir.Value]:
    """The outer values that a node's subgraphs read, each once, in order of first use."""
    seen = {value for value in node.inputs if value is not None}
    for graph in subgraphs(node):
        for value in _free_values(graph):
            if value not in seen:
                seen.add(value)
                yield value


def _free_values(graph: onnx_ir.Graph) -> Iterator[onnx_ir.Value]:
    """Values that a subgraph reads but does not define."""
    made = {*graph.inputs, *graph.initializers.values()}
    for node in graph:
        for value in (*node.inputs, *outer_values(node)):
            if value is not None and value not in made:
                yield value
        made.update(node.outputs)
    for value in graph.outputs:
        if value not in made:
            yield value
