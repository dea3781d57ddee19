"""Prices of regions, and what executors are asked before a graph is cut."""

from __future__ import annotations

import onnx
import onnx_ir

from torchrlopt.executors.onnx_runtimes.asked import refused_kinds
from torchrlopt.executors.regions.prices import Prices
from torchrlopt.executors.tensorrt import model as tensorrt_model
from torchrlopt.onnx.opsets import ATEN_DOMAIN, CORE_DOMAIN

FLOAT, DOUBLE, INT64 = onnx_ir.DataType.FLOAT, onnx_ir.DataType.DOUBLE, onnx_ir.DataType.INT64


def value(name: str, dtype: onnx_ir.DataType = FLOAT, *dims: int | str) -> onnx_ir.Value:
    return onnx_ir.Value(name=name, type=onnx_ir.TensorType(dtype), shape=onnx_ir.Shape(dims or (2, 4)))


def model_of(nodes: list[onnx_ir.Node], inputs: list[onnx_ir.Value]) -> onnx_ir.Model:
    graph = onnx_ir.Graph(
        inputs, nodes[-1].outputs, nodes=nodes, name="asked", opset_imports={"": 22, CORE_DOMAIN: 1}
    )
    return onnx_ir.Model(graph, ir_version=10)


def test_what_a_region_saves_and_what_its_borders_cost() -> None:
    x, y = value("x", FLOAT, 100, "s0"), value("y")
    node = onnx_ir.Node("", "Relu", [x], outputs=[y], name="relu")
    prices = Prices({"relu": 7.0}, crossing_us=30.0, bytes_per_us=1000.0, sizes={"s0": 50})
    assert prices.saving_us([node]) == 7.0
    assert prices.num_bytes(x) == 4 * 100 * 50
    assert prices.border_us([x]) == 30.0 + 2 * 20_000 / 1000
    assert prices.num_bytes(value("z", FLOAT, "s1*s2", 3)) == 4 * 3  # nobody knows this size
    assert prices.num_bytes(onnx_ir.Value(name="nothing is known")) == 1


def test_each_kind_of_node_is_asked_for_once() -> None:
    x, n = value("x"), value("n", INT64)
    axes = onnx_ir.Node(
        "", "Constant", [], [onnx_ir.AttrInt64s("value_ints", [1])], outputs=[value("axes", INT64, 1)]
    )
    nodes = [axes]
    given = x
    for at in range(3):
        nodes.append(onnx_ir.Node("", "Relu", [given], outputs=[value(f"r{at}")], name=f"relu{at}"))
        given = nodes[-1].outputs[0]
    nodes.append(onnx_ir.Node("", "Relu", [n], outputs=[value("m", INT64)], name="of integers"))
    nodes.append(onnx_ir.Node(ATEN_DOMAIN, "he.mid", [given], outputs=[value("opaque")], name="opaque"))
    nodes.append(onnx_ir.Node("", "ReduceMax", [given, axes.outputs[0]], outputs=[value("top")], name="top"))
    asked: list[onnx_ir.Model] = []

    def ask(data: bytes) -> str | None:
        asked.append(onnx_ir.from_proto(onnx.load_from_string(data)))
        return "no  such\nkernel" if asked[-1].graph.inputs[0].dtype == INT64 else None

    found = refused_kinds(model_of(nodes, [x, n]), (), "This", ask)
    assert {node.name: why for node, why in found.items()} == {
        "of integers": "This has no such operator: no such kernel"
    }
    kinds = [[node.op_type for node in each.graph] for each in asked]
    assert sorted(kinds) == [["Constant", "ReduceMax"], ["Relu"], ["Relu"]]
    assert refused_kinds(model_of_again(nodes), (), "This", ask).keys() == found.keys()
    assert len(asked) == 3


def model_of_again(nodes: list[onnx_ir.Node]) -> onnx_ir.Model:
    graph = nodes[0].graph
    assert isinstance(graph, onnx_ir.Graph)
    return onnx_ir.Model(graph, ir_version=10)


def test_tensorrt_is_given_no_doubles_at_the_borders() -> None:
    x, y = value("x", DOUBLE), value("y")
    cast = onnx_ir.Node("", "Cast", [x], [onnx_ir.AttrInt64("to", FLOAT)], outputs=[y], name="cast")
    relu = onnx_ir.Node("", "Relu", [y], outputs=[value("z")], name="relu")
    opaque = onnx_ir.Node(ATEN_DOMAIN, "he.mid", [relu.outputs[0]], outputs=[value("w")], name="opaque")
    wide = onnx_ir.Node("", "Cast", [opaque.outputs[0]], [onnx_ir.AttrInt64("to", DOUBLE)],
                        outputs=[value("v", DOUBLE)], name="wide")  # fmt: skip
    found = tensorrt_model.refusals(model_of([cast, relu, opaque, wide], [x]))
    assert {node.name for node in found} == {"cast", "opaque", "wide"}
    assert "DOUBLE" in found[cast]
