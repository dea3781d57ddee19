"""Values of the reference interpreter that the cases of the standard (test_reference_standard.py) lack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from tests.core.core_calls import assert_equal, evaluate, random
from torchrlopt import _C, _tools
from torchrlopt.errors import ModelFormatError

Array = NDArray[Any]

SPECIAL = np.array([-np.inf, -3.5, -2.5, -1.0, -0.3, 0.0, 0.2, 0.5, 1.5, 2.5, 40.0, np.inf, np.nan])

#: What decides by a comparison, which is where infinities and NaN go wrong.
UNARY: list[tuple[str, dict[str, Any], Callable[[torch.Tensor], torch.Tensor]]] = [
    ("Abs", {}, torch.abs),
    ("Celu", {"alpha": 1.7}, lambda x: F.celu(x, 1.7)),
    ("Clip", {"min": -1.0, "max": 1.5}, lambda x: x.clamp(-1.0, 1.5)),
    ("Clip", {"min": 0.25}, lambda x: x.clamp(min=0.25)),
    ("Elu", {"alpha": 0.7}, lambda x: F.elu(x, 0.7)),
    ("HardSigmoid", {}, lambda x: (0.2 * x + 0.5).clamp(0, 1)),
    ("IsInf", {"detect_negative": 0}, torch.isposinf),
    ("IsInf", {"detect_positive": 0}, torch.isneginf),
    ("LeakyRelu", {"alpha": 0.2}, lambda x: F.leaky_relu(x, 0.2)),
    ("Relu", {}, torch.relu),
    ("Round", {}, torch.round),
    ("Sigmoid", {}, torch.sigmoid),
    ("Softplus", {}, lambda x: torch.logaddexp(x, torch.zeros_like(x))),
]


@pytest.mark.parametrize(("op", "attrs", "oracle"), UNARY)
def test_functions_of_special_numbers_are_torchs(
    op: str, attrs: dict[str, Any], oracle: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    assert_equal(evaluate(op, SPECIAL, **attrs)[0], oracle(torch.from_numpy(SPECIAL)).numpy())


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_nan_wins_on_either_side(op: str) -> None:
    a, b = np.array([np.nan, 1.0]), np.array([1.0, np.nan])
    assert np.isnan(evaluate(op, a, b)[0]).all()


@pytest.mark.parametrize(
    ("op", "oracle"),
    [("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor), ("Equal", np.equal)],
)
def test_logic(op: str, oracle: Callable[..., Array]) -> None:
    a, b = random(2, 4) > 0, random(4, seed=1) > 0
    assert_equal(evaluate(op, a, b)[0], oracle(a, b))
    assert_equal(evaluate("Not", a)[0], ~a)


def test_integers_are_exact_and_wrap() -> None:
    a = np.array([2**62, -7, 7, -7], dtype=np.int64)
    b = np.array([3, 2, -2, -2], dtype=np.int64)
    with np.errstate(over="ignore"):
        assert_equal(evaluate("Mul", a, b, arithmetic="field")[0], a * b)
    assert_equal(evaluate("Div", a, b, arithmetic="field")[0], np.array([2**62 // 3, -3, -3, 3]))
    assert_equal(evaluate("Mod", a, b, arithmetic="field")[0], np.mod(a, b))
    assert_equal(evaluate("Mod", a, b, arithmetic="field", fmod=1)[0], np.fmod(a, b))
    assert_equal(evaluate("Pow", b, np.array([3, 0, 1, 5]))[0], b ** np.array([3, 0, 1, 5]))
    small = np.array([100, -100], dtype=np.int8)
    with np.errstate(over="ignore"):
        assert_equal(evaluate("Add", small, small)[0], small + small)
    with pytest.raises(ModelFormatError, match="division by zero"):
        evaluate("Div", np.array([1]), np.array([0]))


@pytest.mark.parametrize(
    ("x", "to", "expected"),
    [
        (np.array([-1.7, 2.9, 0.0]), "i64", np.array([-1, 2, 0])),
        (np.array([-1.7, 0.0]), "bool", np.array([True, False])),
        (np.array([300, -1]), "u8", np.array([44, 255])),
        (np.array([3, 0]), "bool", np.array([True, False])),
        (np.array([True, False]), "f32", np.array([1.0, 0.0])),
        (np.array([3, -4]), "f64", np.array([3.0, -4.0])),
        (np.array([0.1]), "f16", np.array([0.1])),
    ],
)
def test_casts(x: Array, to: str, expected: Array) -> None:
    assert_equal(evaluate("Cast", x, to=to)[0], expected)


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 7), (4, 3, 3), {}),
    ((1, 3, 6, 7), (4, 3, 3, 2), {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
    ((1, 4, 8, 9), (6, 2, 3, 3), {"group": 2, "dilations": [2, 1], "pads": [2, 1, 2, 1]}),
    ((2, 3, 5, 5), (6, 1, 3, 3), {"group": 3, "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 1), {"strides": [1, 2, 3], "pads": [0, 1, 0, 1, 1, 2]}),
    ((1, 2, 3, 3), (2, 2, 1, 1), {}),
]


@pytest.mark.parametrize(("x_shape", "w_shape", "attrs"), CONVOLUTIONS)
def test_conv_is_torchs(x_shape: tuple[int, ...], w_shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    x, w, b = random(*x_shape), random(*w_shape, seed=1), random(w_shape[0], seed=2)
    rank = len(x_shape) - 2
    pads = attrs.get("pads", [0] * 2 * rank)
    sides = [side for i in reversed(range(rank)) for side in (pads[i], pads[i + rank])]
    function = [F.conv1d, F.conv2d, F.conv3d][rank - 1]
    expected = function(
        F.pad(torch.from_numpy(x), sides),
        torch.from_numpy(w),
        torch.from_numpy(b),
        stride=attrs.get("strides", 1),
        dilation=attrs.get("dilations", 1),
        groups=attrs.get("group", 1),
    ).numpy()
    assert_equal(evaluate("Conv", x, w, b, **attrs)[0], expected)
    residual = random(*expected.shape, seed=3)
    fused = evaluate("FusedConv", x, w, b, residual, activation="Relu", **attrs)[0]
    assert_equal(fused, np.maximum(expected + residual, 0))
    without = expected - b.reshape(-1, *[1] * rank)
    assert_equal(evaluate("FusedConv", x, w, None, residual, **attrs)[0], without + residual)


@pytest.mark.parametrize(
    ("activation", "alpha", "beta", "op", "attrs"),
    [
        ("Relu", 0, 0, "Relu", {}),
        ("Gelu", 0, 0, "Gelu", {}),
        ("GeluTanh", 0, 0, "Gelu", {"approximate": "tanh"}),
        ("Swish", 0, 0, "Swish", {}),
        ("Sigmoid", 0, 0, "Sigmoid", {}),
        ("Tanh", 0, 0, "Tanh", {}),
        ("HardSwish", 0, 0, "HardSwish", {}),
        ("HardSigmoid", 0.25, 0.5, "HardSigmoid", {"alpha": 0.25, "beta": 0.5}),
        ("LeakyRelu", 0.125, 0, "LeakyRelu", {"alpha": 0.125}),
        ("Clip", -0.5, 0.75, "Clip", {"min": -0.5, "max": 0.75}),
        ("Elu", 0.5, 0, "Elu", {"alpha": 0.5}),
    ],
)
@pytest.mark.parametrize("arithmetic", ["float64", "field"])
def test_fused_activations_are_the_operators(
    activation: str, alpha: float, beta: float, op: str, attrs: dict[str, Any], arithmetic: str
) -> None:
    x, w, b, z = random(2, 3), random(3, 4, seed=1), random(4, seed=2), random(2, 4, seed=3)
    if arithmetic == "field":
        x, w, b, z = (np.round(array * 2**20) for array in (x, w, b, z))
    product = evaluate("MatMul", x, w, arithmetic=arithmetic)[0]
    total = product.astype(float)
    for term in (b, z):
        total = evaluate("Add", total, term, arithmetic=arithmetic)[0].astype(float)
    expected = evaluate(op, total, arithmetic=arithmetic, **attrs)[0]
    fused = evaluate(
        "FusedMatMul", x, w, b, z, arithmetic=arithmetic, activation=activation, alpha=alpha, beta=beta
    )[0]
    assert_equal(fused, expected)


def test_a_row_that_is_masked_altogether_gives_zeros() -> None:
    q, k = random(1, 1, 2, 3), random(1, 1, 4, 3, seed=1)
    mask = np.array([[True, False, True, True], [False] * 4])
    result = evaluate("Attention", q, k, k, mask)[0]
    assert np.all(result[0, 0, 1] == 0)
    assert np.all(result[0, 0, 0] != 0)


def test_large_exponents_do_not_overflow() -> None:
    x = np.array([[1000.0, 999.0], [-1000.0, -1001.0]])
    assert_equal(evaluate("ReduceLogSumExp", x, axes=[1])[0], np.logaddexp(x[:, :1], x[:, 1:]))
    assert_equal(evaluate("Softmax", x)[0], torch.from_numpy(x).softmax(-1).numpy())
    assert_equal(evaluate("LogSoftmax", x)[0], torch.from_numpy(x).log_softmax(-1).numpy())


@pytest.mark.parametrize("axis", [1, -1])
def test_layer_and_rms_normalization(axis: int) -> None:
    x = random(2, 3, 4)
    shape = x.shape[axis:]
    scale, bias = random(*shape, seed=1), random(*shape, seed=2)
    tensors = [torch.from_numpy(array) for array in (x, scale, bias)]
    expected = F.layer_norm(tensors[0], shape, tensors[1], tensors[2], eps=0.1).numpy()
    assert_equal(evaluate("LayerNormalization", x, scale, bias, axis=axis, epsilon=0.1)[0], expected)
    bare = F.layer_norm(tensors[0], shape, tensors[1], eps=0.1).numpy()
    assert_equal(evaluate("LayerNormalization", x, scale, axis=axis, epsilon=0.1)[0], bare)
    rms = F.rms_norm(tensors[0], shape, tensors[1], eps=0.1).numpy()
    assert_equal(evaluate("RMSNormalization", x, scale, axis=axis, epsilon=0.1)[0], rms)


def test_an_index_out_of_range_is_refused() -> None:
    with pytest.raises(ModelFormatError, match="Gather: expected indices from -2 to 1, got 2"):
        evaluate("Gather", np.zeros((2, 3)), np.array([2]))


@pytest.mark.parametrize(
    ("attrs", "expected"),
    [
        ({"shape": [2, 0]}, np.zeros((2, 0))),
        ({"shape": [2], "value": 0.1}, np.full(2, 0.1)),
        ({"shape": [2], "value": 3, "dtype": "i64"}, np.array([3, 3])),
        ({"shape": [1], "value": 1, "dtype": "bool"}, np.array([True])),
    ],
)
def test_constants_of_a_shape(attrs: dict[str, Any], expected: Array) -> None:
    assert_equal(evaluate("ConstantOfShape", **attrs)[0], expected)


@pytest.mark.parametrize(
    ("type_", "attrs", "expected"),
    [
        (("f32", [2]), {"value": [0.25, -3.0]}, np.array([0.25, -3.0])),
        (("f32", [2, 2]), {"value": [1.5]}, np.full((2, 2), 1.5)),
        (("i64", []), {"int_value": [-4]}, np.array(-4)),
        (("bool", [2]), {"int_value": [0, 1]}, np.array([False, True])),
        (("f32", [0]), {}, np.zeros(0)),
    ],
)
def test_constants(type_: Any, attrs: dict[str, Any], expected: Array) -> None:
    builder = _C.GraphBuilder()
    node = builder.add_leaf("Constant", [], attrs, [type_])
    builder.set_outputs([(node, 0)], ["y"])
    assert_equal(_tools.evaluate(builder.finish(), {})[0], expected)
