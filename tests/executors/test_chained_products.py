"""Detects graphs with chains of small products on which OpenVINO may crash."""

from __future__ import annotations

import onnx_ir
import pytest

from torchrlopt.executors.onnx_runtimes.chained_products import may_crash

TWO = "a = Gemm(x, w1, b1)\n g = Gelu(a)\n b = Gemm(g, w2, b2)\n"
WIDE = "a = MatMul(x, w3)\n g = Relu(a)\n b = MatMul(g, w4)\n"


def crashes(body: str, types: str = "", fixed: str = "w1 b1 w2 b2 w3 w4") -> bool:
    """Whether a graph may crash.

    Args:
        body: its nodes; `out` is its output.
        types: of values inside; without one their sizes are not known.
        fixed: names of the inputs that become constants.
    """
    inputs = (
        "float[8,96] x, float[8,96] y, float[8,192] z, int64[2] shape, float[96,192] w1, float[192] b1, "
        "float[192,96] w2, float[96] b2, float[96,384] w3, float[384,300] w4"
    )
    head = '<ir_version: 10, opset_import: ["" : 20]>'
    model = onnx_ir.from_onnx_text(f"{head} g ({inputs}) => (float[N,M] out) <{types}> {{ {body} }}")
    return may_crash(model, frozenset(fixed.split()))


@pytest.mark.parametrize(
    "body",
    [
        TWO + "r = Relu(y)\n out = Add(b, r)",
        TWO + "r = Relu(y)\n out = Add(r, b)",
        TWO + "r = Add(x, y)\n s = Tanh(b)\n out = Mul(s, r)",
        TWO + "r = Reshape(y, shape)\n out = Add(b, r)",  # OpenVINO may see through it
        "t = Transpose <perm = [1, 0]> (w2)\n u = Transpose <perm = [1, 0]> (t)\n a = Gemm(x, w1, b1)\n"
        "b = MatMul(a, u)\n r = Relu(y)\n out = Add(b, r)",
        "a = Gemm(x, w1, b1)\n r = Sigmoid(y)\n b = MatMul(a, w2)\n c = Add(b, r)\n out = Identity(c)",
    ],
)
def test_chains_that_read_another_result(body: str) -> None:
    assert crashes(body)


@pytest.mark.parametrize(
    "body",
    [
        TWO + "out = Add(b, y)",  # an input of the graph
        TWO + "r = Relu(b2)\n out = Add(b, r)",  # computed of weights only
        "a = Gemm(x, w1, b1)\n b = Relu(y)\n c = Add(b, b)\n out = Identity(c)",
        "a = Gemm(x, w1, b1)\n r = Relu(z)\n out = Add(a, r)",  # one product
        TWO + "r = Relu(y)\n s = Concat <axis = 0> (b, r)\n out = Identity(s)",
        TWO + "r = Relu(y)\n s = Add(b, r)\n u = Relu(b)\n out = Add(s, u)",  # its result is read twice
    ],
)
def test_other_graphs(body: str) -> None:
    assert not crashes(body)


def test_wide_products_images_and_weights_that_stay_inputs_are_left_alone() -> None:
    body = TWO + "r = Relu(y)\n out = Add(b, r)"
    assert crashes(body, "float[8,192] a, float[8,96] b")
    assert not crashes(body, "float[2,8,192] a, float[2,8,96] b")
    assert not crashes(body, "float[8,192] a, float[8,96] b", fixed="b1 b2")
    wide = WIDE + "r = Relu(y)\n out = Add(b, r)"
    assert not crashes(wide, "float[8,384] a, float[8,300] b")
