"""Reading: every node becomes a typed operator or an opaque node, and malformed input is refused."""

from __future__ import annotations

import onnx_ir
import pytest

from tests.onnx.onnx_text import model_of
from torchrlopt.errors import ModelFormatError, UnsupportedError
from torchrlopt.onnx import opsets
from torchrlopt.onnx.reader import read


def lines(body: str, opset: int = opsets.NATIVE, imports: str = "") -> list[str]:
    """The operators of the graph that a model is read into, as text."""
    text = read(model_of(body, opset, imports)).graph.text()
    return [line.strip() for line in text.splitlines() if " = " in line and "Constant" not in line]


FOLDED = [
    ("(float[2,6] x) => (float[3,4] y) <int64[2] s = {3,-1}> { y = Reshape(x, s) }",
     "Reshape(x; shape=[3,-1])"),
    ("(float[2] x) => (float[3,2] y) <int64[2] s = {3,2}> { y = Expand(x, s) }",
     "Expand(x; shape=[3,2])"),
    ("(float[8] x) => (float[3] y) <int64[1] a = {1}, int64[1] b = {4}> { y = Slice(x, a, b) }",
     "Slice(x; axes=[0], starts=[1], ends=[4])"),
    ("(float[2,3] x) => (float[2] y) <int64[1] a = {-1}> { y = ReduceSum<keepdims=0>(x, a) }",
     "ReduceSum(x; axes=[-1], keepdims=0)"),
    ("(float[4] x) => (float[4] y) <float a = {0}, float b = {6}> { y = Clip(x, a, b) }",
     "Clip(x; min=0.0, max=6.0)"),
    ("(float[4] x) => (float[4] y) <float b = {6}> { y = Clip(x, , b) }",
     "Clip(x; max=6.0)"),
    ("(float[4] x) => (float[6] y) <int64[2] p = {1,1}> { y = Pad(x, p) }",
     "Pad(x; pads=[1,1])"),
    ("(float[1,4] x) => (float[1,6] y) <int64[2] p = {1,1}, int64[1] a = {-1}> { y = Pad(x, p, , a) }",
     "Pad(x; pads=[0,1,0,1])"),
    ("(float[4] x) => (float[8] y) <int64[1] r = {2}> { y = Tile(x, r) }",
     "Tile(x; repeats=[2])"),
    ("(float[4] x) => (float[1,4] y) <int64[1] a = {0}> { y = Unsqueeze(x, a) }",
     "Unsqueeze(x; axes=[0])"),
    ("(float[5] x) => (float[3] y, float[2] z) { y, z = Split<num_outputs=2>(x) }",
     "Split(x; sizes=[3,2])"),
    ("(float[2,3] x) => (float[3,2] y) { y = Transpose(x) }",
     "Transpose(x; perm=[1,0])"),
    ("(float[4] x) => (float[4] y) <int64 a = {0}> { y = CumSum<reverse=1>(x, a) }",
     "CumSum(x; axis=0, reverse=1)"),
    ("(float[1,1,4] x) => (float[1,1,8] y) <float[3] s = {1,1,2}> { y = Resize(x, , s) }",
     "scales=[1.0,1.0,2.0]"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), FOLDED, ids=lambda t: t.split("(")[0][:12])
def test_constant_inputs_become_attributes(body: str, expected: str) -> None:
    (line,) = lines(f"g {body}")
    assert expected in line


def test_same_padding_is_worked_out() -> None:
    (line,) = lines(
        'g (float[1,1,5] x, float[1,1,2] w) => (float[1,1,5] y) { y = Conv<auto_pad="SAME_UPPER">(x, w) }'
    )
    assert "pads=[0,1]" in line


@pytest.mark.parametrize(("stride", "is_read"), [(1, True), (2, False)])
def test_same_padding_of_a_free_size(stride: int, is_read: bool) -> None:
    (line,) = lines(
        f"""g (float[1,1,N] x, float[1,1,4] w) => (float[1,1,M] y) {{
            y = Conv<auto_pad="SAME_LOWER", dilations=[2], strides=[{stride}]>(x, w) }}"""
    )
    assert ("pads=[3,3]" in line) == is_read


def test_window_attributes_with_default_values_are_left_out() -> None:
    body = "g (float[1,1,5] x, float[1,1,2] w) => (float[1,1,4] y) { y = Conv<strides=[1],pads=[0,0]>(x, w) }"
    assert lines(body) == lines(body.replace("<strides=[1],pads=[0,0]>", ""))


def test_float_attributes_keep_their_decimal_form() -> None:
    (line,) = lines(
        "g (float[2,4] x, float[4] s) => (float[2,4] y) { y = LayerNormalization<epsilon=0.00001>(x, s) }"
    )
    assert "epsilon" not in line  # equal to the schema's default, though the file holds it in 32 bits


OPAQUE = {
    "a shape known at run time": "(float[6] x, int64[2] s) => (float[a,b] y) { y = Reshape(x, s) }",
    "an operator the core does not have": "(float[2,2] x) => (float y) { y = Det(x) }",
    "an output the core does not have":
        "(float[1,1,4] x) => (float[1,1,3] y, int64[1,1,3] i) { y, i = MaxPool<kernel_shape=[2]>(x) }",
    "training mode":
        "(float[1,2] x,float[2] s)=>(float[1,2] y) {y,m,v = BatchNormalization<training_mode=1>(x,s,s,s,s)}",
    "an attribute the core does not have":
        '(float[2,2,2,2] x) => (float[2,2,4,4] y) <float[4] s = {1,1,2,2}>'
        ' { y = Resize<mode="linear",keep_aspect_ratio_policy="not_larger">(x, , s) }',
    "an input of unknown rank":
        "(float[2,3] x, int64[2] s) => (float[a,b] z) { y = Reshape(x, s) z = Flatten(y) }",
}  # fmt: skip


@pytest.mark.parametrize("body", OPAQUE.values(), ids=OPAQUE.keys())
def test_other_forms_are_opaque_and_keep_their_types(body: str) -> None:
    found = lines(f"g {body}")
    assert any("Opaque(" in line for line in found)
    program = read(model_of(f"g {body}"))
    declared = [str(value.name) for value in program.source.graph.outputs]
    assert program.graph.output_names == declared


OF_INTEGERS = {
    "both operands": "f = DequantizeLinear(q, s)  v = DequantizeLinear(w, s)  y = MatMul(f, v)",
    "in another shape": "h = DequantizeLinear(p, s)  f = Reshape(h, to)  y = MatMul(f, z)",
    "weights only": "v = DequantizeLinear(w, s)  y = MatMul(x, v)",
}


@pytest.mark.parametrize("kind", OF_INTEGERS)
def test_products_of_integers_are_opaque(kind: str) -> None:
    body = f"""g (float[2,3] x, uint8[2,3] q, uint8[6] p, float s, int8[3,2] w, float[3,2] z)
        => (float[2,2] y) <int64[2] to = {{2,3}}, float[2,3] f, float[3,2] v, float[6] h>
        {{ {OF_INTEGERS[kind]} }}"""
    *_, product = lines(body)
    assert ("Opaque(" in product) == (kind != "weights only")


def test_opaque_nodes_with_other_attributes_are_other_nodes() -> None:
    body = "g (float[2] x) => (float[2] y, float[2] z) { y = my.Foo<a=1>(x) z = my.Foo<a=2>(x) }"
    first, second = lines(body, imports=', "my" : 1')
    assert first.partition("op=")[2] != second.partition("op=")[2]


def test_values_that_a_subgraph_reads_are_inputs_of_its_node() -> None:
    body = """g (bool c, float[2] x) => (float[2] y) {
        t = Relu(x)
        y = If (c) <then_branch = a () => (float[2] p) { p = Neg(t) },
                    else_branch = b () => (float[2] q) { q = Add(t, x) }>
    }"""
    program = read(model_of(body))
    nodes = [program.graph.node(id_) for id_ in program.graph.topological_order()]
    (opaque,) = [node for node in nodes if node["op"] == "Opaque"]
    names = [program.graph.node(value[0])["output_names"][0] for value in opaque["inputs"]]
    assert names == ["c", "t", "x"]
    assert program.outer[opaque["name"]] == ("t", "x")


def test_weights_and_what_depends_on_them_only_are_static() -> None:
    body = "g (float[2,2] x, float[2,2] w) => (float[2,2] y) { t = Relu(w) y = MatMul(x, t) }"
    program = read(model_of(body), {"w"})
    static = {
        program.graph.node(id_)["output_names"][0]: program.graph.node(id_)["is_static"]
        for id_ in program.graph.topological_order()
    }
    assert static == {"x": False, "w": True, "t": True, "y": False}


def test_large_initializers_are_weights_and_small_ones_constants() -> None:
    values = ",".join(["1"] * 65)
    initializers = f"<float[65] w = {{{values}}}, float c = {{2}}>"
    body = f"g (float[65] x) => (float[65] z) {initializers} {{ y = Mul(x, w) z = Mul(y, c) }}"
    program = read(model_of(body))
    operators = {
        node["output_names"][0]: node["op"]
        for node in map(program.graph.node, program.graph.topological_order())
    }
    assert operators["w"] == "Weight"
    assert operators["c"] == "Constant"


def test_symbolic_dims_are_kept() -> None:
    (line,) = lines("g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }")
    program = read(model_of("g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }"))
    assert line == "y = Relu(x)"
    assert program.graph.type(program.graph.outputs[0]) == ("f32", ["N", 3])


@pytest.mark.parametrize("opset", [12, 29])
def test_other_opsets_are_refused(opset: int) -> None:
    model = model_of("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.graph.opset_imports[""] = opset
    with pytest.raises(UnsupportedError, match="13 to 28"):
        read(model)


def test_a_declared_type_that_cannot_be_is_refused() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.graph.outputs[0].shape = onnx_ir.Shape([3])
    with pytest.raises(ModelFormatError, match="cannot have"):
        read(model)


def test_a_name_given_twice_is_refused() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { t = Relu(x) y = Neg(t) }")
    model.graph.node(0).outputs[0].name = "x"
    with pytest.raises(ModelFormatError, match="already taken"):
        read(model)


def test_a_value_read_before_it_is_made_is_refused() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { t = Relu(x) y = Neg(t) }")
    first = model.graph.node(0)
    model.graph.remove(first)
    model.graph.append(first)
    with pytest.raises(ModelFormatError, match="before it is made"):
        read(model)
