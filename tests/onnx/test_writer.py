"""Writing: unchanged parts are the source's own again, new parts are valid ONNX."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx.reference import ReferenceEvaluator

from tests.onnx.onnx_text import model_of
from torchrlopt import _C
from torchrlopt.onnx import opsets
from torchrlopt.onnx.reader import read
from torchrlopt.onnx.writer import write

RULES = _C.Library("""
substitution drop_relu exact
  t = Relu(x)
  y = Relu(t)
=>
  y = Relu(x)
proof test

substitution relu_to_clip
  y = Relu(x)
=>
  y = Clip(x; min=0.0)
proof test

substitution reuse_relu exact
  t = Relu(x)
  y = Relu(t)
=>
  y = t
proof test
""")


def described(model: onnx_ir.Model) -> list[tuple[Any, ...]]:
    """Everything about the nodes of a model, in an order that does not depend on the list."""
    return sorted(
        (
            str(node.name),
            node.domain,
            node.op_type,
            [value and value.name for value in node.inputs],
            [value.name for value in node.outputs],
            {name: str(attribute.value) for name, attribute in node.attributes.items()},
        )
        for node in model.graph
    )


UNCHANGED = [
    "(float[2,6] x) => (float[3,4] y) { s = Constant<value_ints=[3,-1]>() y = Reshape<allowzero=0>(x, s) }",
    "(float[1,1,4] x) => (float[1,1,3] y) { y = MaxPool<kernel_shape=[2], storage_order=1>(x) }",
    "(float[2,2] x) => (float y) { y = Det(x) }",
    "(float[4] x) => (float[4] y) { b = Constant<value_float=6.0>() y = Clip(x, , b) }",
    "(float[4] x) => (float[4] y) { y, m = Dropout(x) }",
    """(bool c, float[2] x) => (float[2] y) {
        t = Relu(x)
        y = If (c) <then_branch = a () => (float[2] p) { p = Neg(t) },
                    else_branch = b () => (float[2] q) { q = Add(t, x) }>
    }""",
]


@pytest.mark.parametrize("body", UNCHANGED)
def test_an_unchanged_graph_is_the_source_again(body: str) -> None:
    model = model_of(f"g {body}")
    written = write(read(model))
    skip = {"If": True}
    mine = [node for node in described(written) if node[2] not in skip]
    assert mine == [node for node in described(model) if node[2] not in skip]
    assert [value.name for value in written.graph.inputs] == [value.name for value in model.graph.inputs]
    assert [value.name for value in written.graph.outputs] == [value.name for value in model.graph.outputs]
    onnx.checker.check_model(onnx_ir.to_proto(written))


def rewritten(body: str, name: str, opset: int = opsets.NATIVE) -> onnx_ir.Model:
    """The model after one substitution, at its first match."""
    program = read(model_of(body, opset))
    return write(dataclasses.replace(program, graph=RULES.apply(program.graph, name, 0)))


def run(model: onnx_ir.Model, **inputs: Any) -> list[Any]:
    proto = onnx_ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    outputs: list[Any] = ReferenceEvaluator(proto).run(None, inputs)
    return outputs


X = np.asarray([-1.0, 2.0], dtype=np.float32)


def test_the_output_of_a_new_node_has_the_name_of_the_graph_output() -> None:
    model = rewritten("g (float[2] x) => (float[2] y) { t = Neg(x) y = Relu(t) }", "relu_to_clip")
    node = next(node for node in model.graph if node.op_type == "Clip")
    assert str(node.name).startswith("rlopt_")
    assert node.outputs[0].name == "y"
    np.testing.assert_array_equal(run(model, x=X)[0], [1, 0])


def test_an_output_that_becomes_another_output_is_an_identity() -> None:
    body = "g (float[2] x) => (float[2] t, float[2] y) { t = Relu(x) y = Relu(t) }"
    model = rewritten(body, "reuse_relu")
    assert [value.name for value in model.graph.outputs] == ["t", "y"]
    assert sorted(node.op_type for node in model.graph) == ["Identity", "Relu"]
    assert [list(output) for output in run(model, x=X)] == [[0, 2], [0, 2]]


def test_a_value_that_becomes_an_output_takes_its_name() -> None:
    model = rewritten("g (float[2] x) => (float[2] y) { t = Relu(x) y = Relu(t) }", "reuse_relu")
    assert [(node.op_type, node.outputs[0].name) for node in model.graph] == [("Relu", "y")]


def test_an_output_that_becomes_an_input_is_an_identity() -> None:
    library = _C.Library("substitution drop_neg_neg\n  t = Neg(x)\n  y = Neg(t)\n=>\n  y = x\nproof test\n")
    program = read(model_of("g (float[2] x) => (float[2] y) { t = Neg(x) y = Neg(t) }"))
    model = write(dataclasses.replace(program, graph=library.apply(program.graph, "drop_neg_neg", 0)))
    np.testing.assert_array_equal(run(model, x=X)[0], X)


def test_a_subgraph_reads_what_stands_for_its_value_now() -> None:
    body = """g (bool c, float[2] x) => (float[2] y) {
        t = Relu(x)
        u = Relu(t)
        y = If (c) <then_branch = a () => (float[2] p) { p = Neg(u) },
                    else_branch = b () => (float[2] q) { q = Add(u, x) }>
    }"""
    for name in ("drop_relu", "reuse_relu"):
        model = rewritten(body, name)
        assert "u" not in {value.name for node in model.graph for value in node.outputs}
        for condition, expected in ((True, [0, -2]), (False, [-1, 4])):
            np.testing.assert_array_equal(run(model, c=np.asarray(condition), x=X)[0], expected)


def test_every_value_is_typed() -> None:
    model = write(
        read(model_of("g (float[2,3] x) => (float[a,b] z) { t = Relu(x) u = Transpose(t) z = Neg(u) }"))
    )
    shapes = {node.outputs[0].name: tuple(node.outputs[0].shape or ()) for node in model.graph}
    assert shapes["t"] == (2, 3)
    assert shapes["u"] == (3, 2)


@pytest.mark.parametrize(
    ("opset", "body"),
    [
        (13, "g (float[2,3] x) => (float[2,1] y) { y = ReduceMax<axes=[1]>(x) }"),
        (17, "g (float[6,N] x) => (float[a,N] y, float[b,N] z) { y, z = Split(x) }"),
        (13, "g (float[2,2] x) => (float y) { y = Det(x) }"),
        (
            16,
            """g (float[1,1,2,2] x, float[1,1,1,2] p) => (float[1,1,1,1] y) {
                y = GridSample<mode="bilinear">(x, p) }""",
        ),
        (17, "g (float[1,4,1] x) => (float[1,4,2] y) { y = DFT<axis=1>(x) }"),
    ],
)  # fmt: skip
def test_old_forms_stay_in_their_opset(opset: int, body: str) -> None:
    model = model_of(body, opset)
    written = write(read(model))
    assert written.graph.opset_imports[""] == opset
    assert described(written) == described(model)
    onnx.checker.check_model(onnx_ir.to_proto(written), full_check=True)


def test_initializers_and_large_constants_keep_their_bytes() -> None:
    content = ",".join(str(i) for i in range(100))
    body = f"g (float[100] x) => (float[100] y) <float[100] w = {{{content}}}> {{ y = Mul(x, w) }}"
    model = write(read(model_of(body)))
    np.testing.assert_array_equal(run(model, x=np.ones(100, np.float32))[0], np.arange(100, dtype=np.float32))


def test_operators_of_a_later_opset_raise_the_import() -> None:
    program = read(model_of("g (float[2] x) => (float[2] y) { y = Relu(x) }"))
    graph = _C.parse_graph("graph (x: f32[2]) {\n z = Swish(x)\n return z\n}")
    model = write(dataclasses.replace(program, graph=graph))
    assert model.graph.opset_imports[""] == 24
    assert np.isfinite(run(model, x=X)[0]).all()
