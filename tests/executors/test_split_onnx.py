"""Weight expressions taken out of an ONNX model: the remaining model, and the numbers."""

from __future__ import annotations

import numpy as np
import onnx_ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from tests.onnx.onnx_text import model_of
from torchrlopt.executors.weights.split_onnx import WeightPrologue, split_weights

CPU = torch.device("cpu")


def split(body: str, *weights: str, exact: bool = False) -> tuple[onnx_ir.Model, WeightPrologue]:
    model = model_of(body)
    return model, split_weights(model, weights, CPU, exact)


def ops(model: onnx_ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def evaluate(model: onnx_ir.Model, **feeds: torch.Tensor) -> list[np.ndarray]:
    arrays = {name: value.numpy() for name, value in feeds.items()}
    return ReferenceEvaluator(onnx_ir.to_proto(model)).run(None, arrays)


def test_products_of_weights_leave_the_model() -> None:
    body = """g (float[2, 3] x, float[3, 4] w, float[4, 5] v) => (float[2, 5] y) {
        k = MatMul (w, v)
        t = Tanh (k)
        y = MatMul (x, t) }"""
    model, prologue = split(body, "w", "v")
    assert ops(model) == ["MatMul"]
    assert [value.name for value in model.graph.inputs] == ["x", "t"]
    assert prologue.names == {"t"}
    torch.manual_seed(0)
    x, w, v = torch.randn(2, 3), torch.randn(3, 4), torch.randn(4, 5)
    values = prologue({"w": w, "v": v})
    (got,) = evaluate(model, x=x, **values)
    np.testing.assert_allclose(got, (x @ (w @ v).tanh()).numpy(), rtol=1e-5)


def test_weights_of_integers_stay_integers() -> None:
    body = """g (float[2, 3] x, int8[3, 4] w, float[4] s) => (float[2, 4] y) {
        t = Neg (s)
        v = DequantizeLinear <axis = 1> (w, t)
        y = MatMul (x, v) }"""
    model, prologue = split(body, "w", "s")
    assert ops(model) == ["DequantizeLinear", "MatMul"]
    assert prologue.names == {"w", "t"}


def test_weights_read_as_they_are_stay_beside_results() -> None:
    body = """g (float[2, 3] x, float[3, 3] w) => (float[2, 3] y) {
        t = Neg (w)
        a = MatMul (x, t)
        b = MatMul (x, w)
        y = Add (a, b) }"""
    model, prologue = split(body, "w")
    assert prologue.names == {"w", "t"}
    w = torch.randn(3, 3)
    values = prologue({"w": w})
    assert values["w"] is w
    assert torch.equal(values["t"], -w)
    assert "Neg" not in ops(model)


def test_an_output_that_is_made_of_weights_only() -> None:
    body = """g (float[2] x, float[2] w) => (float[2] y, float[2] z) {
        y = Neg (w)
        z = Add (x, y) }"""
    model, prologue = split(body, "w")
    assert [value.name for value in model.graph.outputs] == ["y", "z"]
    x, w = torch.tensor([1.0, 2.0]), torch.tensor([5.0, 7.0])
    y, z = evaluate(model, x=x, **prologue({"w": w}))
    np.testing.assert_array_equal(y, [-5, -7])
    np.testing.assert_array_equal(z, [-4, -5])


@pytest.mark.parametrize("exact", [False, True])
def test_results_are_rounded_once(exact: bool) -> None:
    body = """g (float[1, 1] x, float[1, 4096] w, float[4096, 1] v) => (float[1, 1] y) {
        k = MatMul (w, v)
        y = Mul (x, k) }"""
    _, prologue = split(body, "w", "v", exact=exact)
    torch.manual_seed(0)
    w, v = torch.randn(1, 4096), torch.randn(4096, 1)
    wanted = w @ v if exact else (w.double() @ v.double()).float()
    assert torch.equal(prologue({"w": w, "v": v})["k"], wanted)


def test_constants_that_only_weights_met_go_with_them() -> None:
    body = """g (float[2] x, float[2] w) => (float[2] y) {
        c = Constant <value = float {2.0}> ()
        d = Mul (w, c)
        y = Add (x, d) }"""
    model, prologue = split(body, "w")
    assert ops(model) == ["Add"]
    assert prologue({"w": torch.ones(2)})["d"].tolist() == [2, 2]


def test_random_numbers_are_drawn_at_every_call() -> None:
    body = """g (float[2] x, float[2] w) => (float[2] y) {
        r = RandomNormalLike (w)
        y = Add (x, r) }"""
    model, prologue = split(body, "w")
    assert "RandomNormalLike" in ops(model)
    assert prologue.names == {"w"}
