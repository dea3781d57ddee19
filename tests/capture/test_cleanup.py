"""The fixed clean-up, on graphs written as ONNX text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import parser, shape_inference
from onnx.reference import ReferenceEvaluator

from torchrlopt.capture.cleanup import Cleaned, clean
from torchrlopt.capture.opaque import DOMAIN
from torchrlopt.onnx import opsets

_HEADER = f'<ir_version: 10, opset_import: ["" : {opsets.NATIVE}, "{DOMAIN}" : 1]>'


def _model(text: str) -> onnx_ir.Model:
    proto = shape_inference.infer_shapes(parser.parse_model(f"{_HEADER} {text}"), strict_mode=True)
    model = onnx_ir.from_proto(proto)
    for node in model.graph:
        node.name = node.outputs[0].name
    return model


def _clean(text: str) -> tuple[onnx_ir.Model, Cleaned]:
    """Cleans a graph and checks that it still computes the same."""
    model = _model(text)
    before = onnx_ir.to_proto(model)
    cleaned = clean(model)
    after = onnx_ir.to_proto(model)
    onnx.checker.check_model(after)
    _assert_equal_results(before, after)
    return model, cleaned


def _assert_equal_results(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    generator = np.random.default_rng(0)
    inputs = {}
    for value in before.graph.input:
        shape = [dim.dim_value or 3 for dim in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        inputs[value.name] = generator.integers(-4, 5, shape).astype(dtype)
    wanted = ReferenceEvaluator(before).run(None, inputs)
    found = ReferenceEvaluator(after).run(None, inputs)
    for a, b in zip(wanted, found, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def _op_types(model: onnx_ir.Model) -> list[str]:
    return [node.op_type for node in model.graph if node.op_type != "Constant"]


GRAPHS: dict[str, tuple[str, list[str]]] = {
    "identity": ("(float[3] x) => (float[3] y) { a = Identity(x) y = Exp(a) }", ["Exp"]),
    "identity that is an output": ("(float[3] x) => (float[3] y) { y = Identity(x) }", ["Identity"]),
    "copy under a returned view": (
        """(float[3] x) => (float[3, 1] y)
        { a = Identity(x) s = Constant<value_ints = [3, 1]>() y = Reshape(a, s) }""",
        ["Identity", "Reshape"],
    ),
    "copy of private memory under a returned view": (
        """(float[3] x) => (float[3, 1] y)
        { e = Exp(x) a = Identity(e) s = Constant<value_ints = [3, 1]>() y = Reshape(a, s) }""",
        ["Exp", "Reshape"],
    ),
    "two equal outputs":
        ("(float[3] x) => (float[3] y, float[3] z) { y = Exp(x) z = Exp(x) }", ["Exp", "Exp"]),
    "equal nodes": ("(float[3] x) => (float[3] y) { a = Exp(x) b = Exp(x) y = Add(a, b) }", ["Exp", "Add"]),
    "nodes with other attributes": (
        """(float[3] x) => (float[3] y)
        { a = LeakyRelu<alpha = 0.1>(x) b = LeakyRelu<alpha = 0.2>(x) y = Add(a, b) }""",
        ["LeakyRelu", "LeakyRelu", "Add"],
    ),
    "equal weights": (
        "(float[3] x, float[3] w, float[3] v) => (float[3] z) { y = Mul(x, w) z = Mul(y, v) }", ["Mul", "Mul"]
    ),
    "batch normalisation": (
        """(float[1, 2, 4, 4] x, float[2, 2, 1, 1] w, float[2] s, float[2] b, float[2] m)
        => (float[1, 2, 4, 4] y)
        { v = Exp(m) c = Conv(x, w) y = BatchNormalization(c, s, b, m, v) }""",
        ["Exp", "Conv", "BatchNormalization"],
    ),
    "dead nodes": ("(float[3] x) => (float[3] y) { a = Exp(x) b = Neg(a) y = Sin(x) }", ["Sin"]),
    "reshape of a reshape": (
        """(float[2, 6] x) => (float[4, 3] y)
        { s = Constant<value_ints = [12]>() a = Reshape(x, s)
          t = Constant<value_ints = [4, 3]>() b = Reshape(a, t) y = Exp(b) }""",
        ["Reshape", "Exp"],
    ),
    "reshape there and back": (
        """(float[2, 6] x) => (float[2, 6] y)
        { s = Constant<value_ints = [12]>() a = Reshape(x, s)
          t = Constant<value_ints = [2, 6]>() b = Reshape(a, t) y = Exp(b) }""",
        ["Exp"],
    ),
    "transpose there and back": (
        """(float[2, 3, 4] x) => (float[2, 3, 4] y)
        { a = Transpose<perm = [1, 2, 0]>(x) b = Transpose<perm = [2, 0, 1]>(a) y = Exp(b) }""",
        ["Exp"],
    ),
    "neutral element that broadcasts": (
        """(float[1] x) => (float[3] y)
        { c = Constant<value = float[3] {1.0, 1.0, 1.0}>() a = Mul(x, c) y = Neg(a) }""",
        ["Mul", "Neg"],
    ),
    "expand that broadcasting does": (
        """(float[1, 3] x, float[2, 3] z) => (float[2, 3] y)
        { s = Constant<value_ints = [2, 3]>() a = Expand(x, s) y = Add(a, z) }""",
        ["Add"],
    ),
    "expand that makes the shape": (
        """(float[1, 3] x, float[3] z) => (float[2, 3] y)
        { s = Constant<value_ints = [2, 3]>() a = Expand(x, s) y = Add(a, z) }""",
        ["Expand", "Add"],
    ),
    "one of two expands": (
        """(float[1, 3] x, float[3] z) => (float[2, 3] y)
        { s = Constant<value_ints = [2, 3]>() a = Expand(x, s) b = Expand(z, s) y = Add(a, b) }""",
        ["Expand", "Add"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_left_of_a_graph(name: str) -> None:
    text, left = GRAPHS[name]
    model, _ = _clean(f"g {text}")
    assert _op_types(model) == left


def test_names_of_what_is_replaced_or_reads_from_further_up() -> None:
    _, cleaned = _clean(f"g {GRAPHS['equal nodes'][0]}")
    assert cleaned.replaced == {"b": "a"}
    _, cleaned = _clean(f"g {GRAPHS['reshape of a reshape'][0]}")
    assert cleaned.rewired == {"b"}


def test_random_nodes_stay_apart() -> None:
    model = _model(
        """g (float[3] x) => (float[3] y)
        { a = RandomUniformLike(x) b = RandomUniformLike(x) y = Add(a, b) }"""
    )
    clean(model)
    assert _op_types(model) == ["RandomUniformLike", "RandomUniformLike", "Add"]


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("to = 11", "to = 1", []),  # float -> double -> float
        ("to = 10", "to = 1", ["Cast", "Cast"]),  # float -> half loses digits
        ("to = 11", "to = 7", ["Cast"]),  # float -> double -> int64
        ("to = 7", "to = 6", ["Cast", "Cast"]),  # float -> int64 drops the fraction
    ],
)
def test_chain_of_casts(first: str, second: str, kept: list[str]) -> None:
    out = {"to = 1": "float", "to = 7": "int64", "to = 6": "int32"}[second]
    model, _ = _clean(
        f"g (float[3] x) => ({out}[3] y) {{ a = Cast<{first}>(x) b = Cast<{second}>(a) y = Add(b, b) }}"
    )
    assert _op_types(model) == [*kept, "Add"]


def test_transpose_of_transpose() -> None:
    model, _ = _clean(
        """g (float[2, 3, 4] x) => (float[4, 3, 2] y)
        { a = Transpose<perm = [1, 0, 2]>(x) b = Transpose<perm = [2, 0, 1]>(a) y = Exp(b) }"""
    )
    assert _op_types(model) == ["Transpose", "Exp"]
    (node,) = [node for node in model.graph if node.op_type == "Transpose"]
    assert node.attributes["perm"].as_ints() == (2, 1, 0)


_NEUTRAL: dict[str, tuple[str, str, Callable[[str], str]]] = {
    "x * 1": ("float", "1.0", lambda c: f"Mul(x, {c})"),
    "1 * x": ("float", "1.0", lambda c: f"Mul({c}, x)"),
    "x / 1": ("float", "1.0", lambda c: f"Div(x, {c})"),
    "x - 0": ("float", "0.0", lambda c: f"Sub(x, {c})"),
    "int x + 0": ("int64", "0", lambda c: f"Add(x, {c})"),
}
_NOT_NEUTRAL: dict[str, tuple[str, str, Callable[[str], str]]] = {
    "x + 0 turns -0.0 into 0.0": ("float", "0.0", lambda c: f"Add(x, {c})"),
    "1 / x": ("float", "1.0", lambda c: f"Div({c}, x)"),
    "0 - x": ("float", "0.0", lambda c: f"Sub({c}, x)"),
    "x * 2": ("float", "2.0", lambda c: f"Mul(x, {c})"),
}


def _with_scalar(dtype: str, scalar: str, write: Callable[[str], str]) -> list[str]:
    model, _ = _clean(
        f"""g ({dtype}[3] x) => ({dtype}[3] y)
        {{ c = Constant<value = {dtype} {{{scalar}}}>() a = {write("c")} y = Neg(a) }}"""
    )
    return _op_types(model)


@pytest.mark.parametrize("name", _NEUTRAL)
def test_neutral_element_goes(name: str) -> None:
    assert _with_scalar(*_NEUTRAL[name]) == ["Neg"]


@pytest.mark.parametrize("name", _NOT_NEUTRAL)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_other_scalar_stays(name: str) -> None:
    assert len(_with_scalar(*_NOT_NEUTRAL[name])) == 2


def test_opaque_node_is_left_alone() -> None:
    model = onnx_ir.from_proto(
        parser.parse_model(
            f"""{_HEADER} g (float[3] x) => (float[3] y)
            {{ a = Identity(x) b = {DOMAIN}.foo(a) c = {DOMAIN}.foo(a) y = Add(b, c) }}"""
        )
    )
    for node in model.graph:
        node.name = node.outputs[0].name
        for value in node.outputs:
            value.type, value.shape = onnx_ir.TensorType(onnx_ir.DataType.FLOAT), onnx_ir.Shape([3])
    clean(model)
    assert _op_types(model) == ["foo", "foo", "Add"]
    assert [value.name for node in model.graph for value in node.inputs if value] == ["x", "x", "b", "c"]


def test_names_of_what_stays_do_not_change() -> None:
    model, _ = _clean(
        "g (float[3] x) => (float[3] y) { p = Exp(x) a = Identity(p) q = Sin(a) y = Add(p, q) }"
    )
    assert [(node.name, node.outputs[0].name) for node in model.graph] == [("p", "p"), ("q", "q"), ("y", "y")]
