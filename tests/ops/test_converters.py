"""Converters: the table, dtype rules and pitfalls, symbolic sizes, the fused operators of our own domain.

The results of each operator are tested on the standard's own cases in tests/e2e/test_onnx_nodes.py.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from tests.onnx.onnx_text import model_of
from torchrlopt import _C, _tools, ops
from torchrlopt.errors import LoweringError
from torchrlopt.executors.lowering.onnx_to_aten import lower_model
from torchrlopt.onnx.reader import read
from torchrlopt.onnx.writer import write
from torchrlopt.ops.to_aten import CONVERTERS, converts


def test_every_typed_operator_of_the_core_has_a_converter() -> None:
    typed = {(str(op["domain"]), str(op["name"])) for op in _C.ops() if op["is_typed"]}
    assert typed - set(CONVERTERS) == {("", "RotaryEmbedding")}  # by its body in the standard


def test_an_operator_is_entered_once() -> None:
    with pytest.raises(ValueError, match="two converters for :Relu"):
        converts("Relu")(next(iter(CONVERTERS.values())))


def test_importing_the_package_enters_the_operators_of_all_its_files() -> None:
    files = Path(str(ops.__file__)).parent.glob("*.py")
    homes = {function.__module__.removeprefix("torchrlopt.ops.") for function in CONVERTERS.values()}
    assert homes == {each.stem for each in files if "\n@converts(" in each.read_text(encoding="utf-8")}


# ---- against the reference evaluator of onnx

TRAPS = [
    "(int64[4] x) => (int64[4] y) { d = int[-2] y = Div(x, d) }",
    "(int64[4] x) => (int64[4] y) { d = int[-3] y = Mod(x, d) }",
    "(int64[4] x) => (int64[4] y) { d = int[-3] y = Mod<fmod=1>(x, d) }",
    "(int64[4] x) => (int64[4] y) { e = real[2.5] y = Pow(x, e) }",
    "(float[4] x) => (float[4] y) { b = real[0.5] y = Clip(x, , b) }",
    "(float[4] x) => (float[4] y) { b = real[0.5] y = Clip(x, b) }",
    "(float[4] x) => (bool[4] y) { y = Cast<to=9>(x) }",
    "(float[4] x) => (int64[4] y) { y = Cast<to=7>(x) }",
    "(float[4] x) => (float[2] y) { i = ints[-1,0] y = Gather(x, i) }",
    "(float[4] x) => (float y) { i = int[-2] y = Gather(x, i) }",
    "(float[4] x, int64[2] i) => (float[2] y) { y = Gather(x, i) }",
    "(float[3,4] x) => (float[3,4] y) { s = ints[0,-1] y = Reshape(x, s) }",
    "(float[3,0] x) => (float[0,5] y) { s = ints[0,5] y = Reshape<allowzero=1>(x, s) }",
    "(float[6] x) => (float[2] y) { s = ints[-1] e = ints[-5] "
    "a = ints[0] t = ints[-2] y = Slice(x, s, e, a, t) }",
    "(float[6] x) => (float[6] y) { s = ints[-1] e = ints[-9223372036854775808] "
    "a = ints[0] t = ints[-1] y = Slice(x, s, e, a, t) }",
    "(float[6] x) => (float[4] y) { s = ints[2] e = ints[9223372036854775807] "
    "y = Slice(x, s, e) }",
    "(float[2,3] x) => (float[4,6] y) { p = ints[2,1,0,2] y = Pad(x, p) }",
    "(float[2,3] x) => (float[2,5] y) { p = ints[1,1] a = ints[1] "
    "y = Pad<mode=\"reflect\">(x, p, , a) }",
    "(float[3] x, float[3,4] w) => (float[4] y) { y = MatMul(x, w) }",
    "(float[2,3] x, float[3] w) => (float[2] y) { y = MatMul(x, w) }",
    "(float[5,2,3] x, float[3,4] w) => (float[5,2,4] y) { y = MatMul(x, w) }",
    "(float[2,1,2,3] x, float[5,3,4] w) => (float[2,5,2,4] y) { y = MatMul(x, w) }",
    "(float[2,3] x, float[4,2] w, float[4,1] c) => (float[4,3] y) { y = Gemm<alpha=0.5,beta=2.0>(w, x, c) }",
    "(float[2,3] x) => (int64[2] y) { y = ArgMax<axis=1,keepdims=0,select_last_index=1>(x) }",
    "(float[4] x) => (float[4] y) { a = int[0] y = CumSum<exclusive=1,reverse=1>(x, a) }",
    "(float[5] x) => (float[2] y, float[2] z, float[1] v) { y, z, v = Split<num_outputs=3>(x) }",
    "(float[3,1] x) => (float[3,4] y) { s = ints[1,4] y = Expand(x, s) }",
    "(float[2,3] x) => (float[2,3] y) { y = ReduceSum<noop_with_empty_axes=1>(x) }",
    "(int64[4] x) => (int64 y) { y = ReduceMean<keepdims=0>(x) }",
    "(int32[4] x) => (int32 y) { y = ReduceSum<keepdims=0>(x) }",
    "(float[1,1,5] x) => (float[1,1,3] y) { y = MaxPool<kernel_shape=[3],strides=[2],pads=[1,1]>(x) }",
    "(float[1,1,5] x) => (float[1,1,3] y) "
    "{ y = AveragePool<kernel_shape=[2],strides=[2],ceil_mode=1,count_include_pad=1>(x) }",
]  # fmt: skip


def _input(value: onnx_ir.Value, rng: np.random.Generator, sizes: dict[str, int]) -> Any:
    shape = [dim if isinstance(dim, int) else sizes[str(dim.value)] for dim in value.shape or ()]
    if value.dtype == onnx_ir.DataType.FLOAT:
        return rng.normal(size=shape).astype(np.float32)
    dtype = np.int64 if value.dtype == onnx_ir.DataType.INT64 else np.int32
    low = -4 if len(shape) == 1 and shape[0] == 4 else 0  # operands have four elements, indices two
    return rng.integers(low, 4, shape).astype(dtype)


def model_from(body: str, imports: str = "") -> onnx_ir.Model:
    """A model of a body in which `ints[1,2]`, `int[3]` and `real[0.5]` are short for Constant nodes."""
    for short, long in (("ints", "value_ints"), ("int", "value_int"), ("real", "value_float")):
        value = r"[\1]" if short == "ints" else r"\1"
        body = re.sub(rf"= {short}\[([^\]]*)\]", rf"= Constant<{long}={value}>()", body)
    return model_of(f"g {body}", imports=imports)


def agrees(body: str, **sizes: int) -> None:
    """Asserts that the lowered model gives what onnx's reference evaluator gives."""
    model = model_from(body)
    lowered = lower_model(write(read(model)))
    rng = np.random.default_rng(0)
    inputs = {str(value.name): _input(value, rng, sizes) for value in model.graph.inputs}
    expected = ReferenceEvaluator(onnx_ir.to_proto(model)).run(None, inputs)
    got = lowered(*[torch.from_numpy(array.copy()) for array in inputs.values()])
    for mine, theirs in zip(got, expected, strict=True):
        assert (str(mine.dtype).removeprefix("torch."), tuple(mine.shape)) == (
            str(theirs.dtype),
            theirs.shape,
        )
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("body", TRAPS)
def test_traps(body: str) -> None:
    agrees(body)


SYMBOLIC = [
    "(float[N,3] x) => (float[a,b] y) { s = Shape(x) i = int[0] n = Gather(s, i) "
    "o = ints[0] u = Unsqueeze(n, o) m = ints[-1] "
    "c = Concat<axis=0>(u, m) r = Relu(x) y = Reshape(r, c) }",
    "(float[N,3] x) => (float[a,b] y) { r = Relu(x) y = Flatten<axis=2>(r) }",
    "(float[N,3] x, float[3,2] w) => (float[N,2] y) { y = MatMul(x, w) }",
    "(float[2,N,3] x, float[3,2] w) => (float[2,N,2] y) { y = MatMul(x, w) }",
    "(float[N,4] x) => (float[N,2,2] y) { s = ints[0,2,2] y = Reshape(x, s) }",
    "(float[N,3] x) => (int64 y) { y = Size(x) }",
    "(float[N,3] x) => (float[N,3] y) { s = Shape(x) z = ConstantOfShape(s) y = Add(x, z) }",
    "(float[N,1] x) => (float[N,3] y) { s = ints[1,3] y = Expand(x, s) }",
    "(float[N,6] x) => (float[N,2,3] y) { y0 = Softmax(x) s = ints[0,-1,3] y = Reshape(y0, s) }",
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 17])
@pytest.mark.parametrize("body", SYMBOLIC)
def test_symbolic_sizes(body: str, size: int) -> None:
    agrees(body, N=size)


def test_shape_arithmetic_makes_no_tensors() -> None:
    module = lower_model(write(read(model_from(SYMBOLIC[0]))))
    targets = sorted(str(node.target) for node in module.graph.nodes if node.op == "call_function")
    assert targets == ["aten.relu.default", "aten.reshape.default", "aten.sym_size.int"]


def test_static_sizes_are_numbers() -> None:
    body = SYMBOLIC[0].replace("float[N,3]", "float[4,3]")
    module = lower_model(write(read(model_from(body))))
    (reshape,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.reshape.default)
    assert reshape.args[1] == [4, -1]


# ---- the fused operators

ACTIVATIONS = ["", "Relu", "Gelu", "GeluTanh", "Swish", "Sigmoid", "Tanh", "HardSwish"]
ACTIVATIONS += ["HardSigmoid; alpha=0.2; beta=0.5", "Clip; alpha=-0.5; beta=0.5"]
ACTIVATIONS += ["LeakyRelu; alpha=0.1", "Elu; alpha=1.5"]


def _attributes(activation: str) -> str:
    name, *rest = activation.split("; ")
    return ", ".join([f'activation="{name}"', *rest])


FUSED = {
    "matmul": "graph (x: f32[2,3,4], w: f32[4,5], b: f32[5], z: f32[2,3,5])"
              " {{ y = FusedMatMul(x, w, b, z; {0}) return y }}",
    "matmul without bias": "graph (x: f32[3,4], w: f32[4,5], z: f32[3,5])"
                           " {{ y = FusedMatMul(x, w, _, z; {0}) return y }}",
    "matmul of matrices":
        "graph (x: f32[3,4], w: f32[4,5], b: f32[5]) {{ y = FusedMatMul(x, w, b; {0}) return y }}",
    "conv": "graph (x: f32[2,4,5,5], w: f32[6,2,3,3], b: f32[6], z: f32[2,6,5,5])"
            " {{ y = FusedConv(x, w, b, z; pads=[1,1,1,1], group=2, {0}) return y }}",
    "conv with uneven pads": "graph (x: f32[2,4,5], w: f32[6,4,3])"
                             " {{ y = FusedConv(x, w; pads=[2,0], strides=[2], {0}) return y }}",
}  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("text", FUSED.values(), ids=FUSED.keys())
def test_fused_operators_agree_with_the_reference(text: str, activation: str) -> None:
    lines = text.format(_attributes(activation)).replace("{ ", "{\n").replace(" return y }", "\nreturn y\n}")
    graph = _C.parse_graph(lines)
    program = dataclasses.replace(read(_source(graph)), graph=graph)
    rng = np.random.default_rng(0)
    inputs = {}
    for id_ in graph.inputs:
        node = graph.node(id_)
        inputs[node["name"]] = rng.normal(size=node["types"][0][1]).astype(np.float32)
    exact = {name: array.astype(np.float64) for name, array in inputs.items()}
    (expected,) = _tools.evaluate(graph, exact, "float64")
    (got,) = lower_model(write(program))(*[torch.from_numpy(array) for array in inputs.values()])
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-5)


def _source(graph: _C.Graph) -> onnx_ir.Model:
    """A model with the inputs and outputs of a graph, to write the graph against."""
    nodes = [graph.node(id_) for id_ in graph.inputs]
    declared = ", ".join(f"float{list(node['types'][0][1])} {node['name']}" for node in nodes)
    body = f"({declared}) => (float[a] y) {{ y = my.Source({nodes[0]['name']}) }}"
    model = model_from(body, ', "my" : 1')
    model.graph.node(0).name = "source"
    return model


# ---- refusals


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("(float[2] x) => (float[2] y) { y = my.Foo(x) }", "my:Foo"),
        ("(float[2,3] x, int64[1] a) => (float[b,c] y) { y = ReduceSum(x, a) }", "axes must be constant"),
        ("(string[2] x) => (string[2] y) { y = StringNormalizer(x) }", "STRING"),
        ("(float[1,1,4] x)=>(float[a,b,c] y,int64[a,b,c] i) {y,i=MaxPool<kernel_shape=[2]>(x)}", "MaxPool"),
    ],
)  # fmt: skip
def test_what_has_no_converter_is_refused_by_name(body: str, message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        lower_model(write(read(model_from(body, ', "my" : 1'))))


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ('Resize <nearest_mode="self"> (x, , two)', "nearest_mode"),
        ("Resize(x, , three)", "do not fit"),
        ("Resize(x, , nothing)", "do not fit"),
        ('ScatterElements <axis=0, reduction="self"> (x, at, x)', "reduction"),
        ('GridSample <mode="self"> (x, grid)', "mode"),
        ('GridSample <padding_mode="self"> (x, grid)', "padding_mode"),
    ],
)
def test_what_makes_no_sense_is_refused(node: str, message: str) -> None:
    """Files may have any text and any numbers there; nobody infers the types of this one."""
    body = f"""(float[1,1,2,2] x, float[1,2,2,2] grid, int64[1,1,2,2] at) => (float[a,b,c,d] y) <
      float[4] two = {{1,1,2,2}}, float[3] three = {{1,2,2}}, float[4] nothing = {{1,1,nan,-1}}
    > {{ y = {node} }}"""
    with pytest.raises(LoweringError, match=message):
        lower_model(model_from(body))
