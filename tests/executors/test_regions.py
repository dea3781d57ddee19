"""Prices of regions, and queries to executors before a graph is partitioned."""

from __future__ import annotations

import onnx
import onnx_ir
import pytest
import torch
from torch import fx

from torchrlopt.errors import LoweringError
from torchrlopt.executors.lowering.fx_values import ORIGIN
from torchrlopt.executors.onnx_runtimes.openvino import EXECUTOR as OPENVINO
from torchrlopt.executors.onnx_runtimes.operator_probe import refused_kinds
from torchrlopt.executors.regions.cut import Prices
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
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(100, 50)
    call = graph.call_function(torch.ops.aten.relu.default, (x,))
    call.meta = {"val": torch.empty(100, 50), ORIGIN: ("relu",)}
    prices = Prices({"relu": 7.0}, crossing_us=30.0, bytes_per_us=1000.0)
    assert prices.saving_us([call, call]) == 7.0
    assert prices.border_us([x]) == 30.0 + 2 * 20_000 / 1000


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
        is_refused = any(each.dtype == INT64 for each in asked[-1].graph.inputs)
        return "no  such\nkernel" if is_refused else None

    model = model_of(nodes, [x, n])
    model.graph.outputs.append(nodes[4].outputs[0])
    found = refused_kinds(model, (), "This", ask)
    assert {node.name: why for node, why in found.items()} == {
        "of integers": "This has no such operator: no such kernel"
    }
    kinds = [sorted(node.op_type for node in each.graph) for each in asked]
    together, *each = kinds
    assert together == ["Constant", "ReduceMax", "Relu", "Relu"]
    assert sorted(each) == [["Constant", "ReduceMax"], ["Relu"], ["Relu"]]  # one of them is refused
    assert refused_kinds(model, (), "This", ask).keys() == found.keys()
    assert len(asked) == 4


def test_what_hangs_is_asked_for_twice_and_not_for_each_kind() -> None:
    """Each question takes its whole time then."""
    inputs = {dtype: value(f"x{dtype}", dtype) for dtype in (FLOAT, DOUBLE, onnx_ir.DataType.FLOAT16)}
    nodes = [
        onnx_ir.Node("", kind, [x], outputs=[value(f"{kind}{dtype}", dtype)], name=f"{kind} of {dtype}")
        for kind in ("Relu", "Softplus", "Softsign")
        for dtype, x in inputs.items()
    ]
    asked: list[int] = []

    def ask(data: bytes) -> str | None:
        asked.append(len(onnx.load_from_string(data).graph.node))
        if len(asked) != 2:
            raise LoweringError("it was not done after 60 s")
        return None

    found = refused_kinds(model_of(nodes, [*inputs.values()]), (), "That", ask)
    assert asked == [9, 1, 1]
    assert set(found.values()) == {"it was not done after 60 s"}
    assert len(found) == 8


def test_kinds_that_are_taken_are_asked_for_together() -> None:
    x = value("x")
    tanh = onnx_ir.Node("", "Tanh", [x], outputs=[value("y")], name="tanh")
    relu = onnx_ir.Node("", "Relu", [tanh.outputs[0]], outputs=[value("z")], name="relu")
    asked: list[onnx.ModelProto] = []

    def ask(data: bytes) -> str | None:
        asked.append(onnx.load_from_string(data))
        return None

    assert not refused_kinds(model_of([tanh, relu], [x]), (), "Another", ask)
    (both,) = asked
    onnx.checker.check_model(both)
    assert sorted(node.op_type for node in both.graph.node) == ["Relu", "Tanh"]
    assert len(both.graph.input) == len(both.graph.output) == 2  # neither reads what the other gives


def test_openvino_says_which_operators_it_has() -> None:
    pytest.importorskip("openvino")
    x = value("x", FLOAT, 3, 3)
    relu = onnx_ir.Node("", "Relu", [x], outputs=[value("y", FLOAT, 3, 3)], name="relu")
    root = onnx_ir.Node("", "Det", [relu.outputs[0]], outputs=[onnx_ir.Value(
        name="z", type=onnx_ir.TensorType(FLOAT), shape=onnx_ir.Shape(()))], name="det")  # fmt: skip
    model = model_of([relu, root], [x])
    found = OPENVINO._runtime.refusals(model, (), is_stored=True)
    assert {node.name for node in found} == {"det"}
    assert "OpenVINO has no such operator" in found[root]
    assert "Det" in found[root]


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
