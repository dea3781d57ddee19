"""Elementwise and broadcasting operators: csrc/tools/reference/{elementwise,broadcast}.cpp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from tests.core.core_calls import assert_equal, build, evaluate, random
from torchrlopt import _C, _tools
from torchrlopt.errors import ModelFormatError

SPECIAL = np.array([-np.inf, -3.5, -2.5, -1.0, -0.3, 0.0, 0.2, 0.5, 1.5, 2.5, 40.0, np.inf, np.nan])
FINITE = SPECIAL[np.isfinite(SPECIAL)]
UNIT = np.array([-0.9, -0.5, 0.0, 0.3, 0.99])


def through_torch(function: Callable[..., torch.Tensor], *arrays: NDArray[Any]) -> NDArray[Any]:
    return function(*(torch.from_numpy(array) for array in arrays)).numpy()


UNARY: list[tuple[str, dict[str, Any], NDArray[Any], Callable[[torch.Tensor], torch.Tensor]]] = [
    ("Abs", {}, SPECIAL, torch.abs),
    ("Acos", {}, UNIT, torch.acos),
    ("Acosh", {}, UNIT + 2, torch.acosh),
    ("Asin", {}, UNIT, torch.asin),
    ("Asinh", {}, FINITE, torch.asinh),
    ("Atan", {}, SPECIAL, torch.atan),
    ("Atanh", {}, UNIT, torch.atanh),
    ("Ceil", {}, SPECIAL, torch.ceil),
    ("Celu", {"alpha": 1.7}, SPECIAL, lambda x: F.celu(x, 1.7)),
    ("Clip", {"min": -1.0, "max": 1.5}, SPECIAL, lambda x: x.clamp(-1.0, 1.5)),
    ("Clip", {"min": 0.25}, SPECIAL, lambda x: x.clamp(min=0.25)),
    ("Cos", {}, FINITE, torch.cos),
    ("Cosh", {}, UNIT, torch.cosh),
    ("Elu", {"alpha": 0.7}, SPECIAL, lambda x: F.elu(x, 0.7)),
    ("Erf", {}, SPECIAL, torch.erf),
    ("Exp", {}, UNIT, torch.exp),
    ("Floor", {}, SPECIAL, torch.floor),
    ("Gelu", {}, FINITE, F.gelu),
    ("Gelu", {"approximate": "tanh"}, FINITE, lambda x: F.gelu(x, approximate="tanh")),
    ("HardSigmoid", {}, SPECIAL, lambda x: (0.2 * x + 0.5).clamp(0, 1)),
    ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}, FINITE, F.hardsigmoid),
    ("HardSwish", {}, FINITE, F.hardswish),
    ("Identity", {}, SPECIAL, lambda x: x),
    ("IsInf", {}, SPECIAL, torch.isinf),
    ("IsInf", {"detect_negative": 0}, SPECIAL, torch.isposinf),
    ("IsInf", {"detect_positive": 0}, SPECIAL, torch.isneginf),
    ("IsNaN", {}, SPECIAL, torch.isnan),
    ("LeakyRelu", {"alpha": 0.2}, SPECIAL, lambda x: F.leaky_relu(x, 0.2)),
    ("Log", {}, UNIT + 1, torch.log),
    ("Mish", {}, FINITE, F.mish),
    ("Neg", {}, SPECIAL, torch.neg),
    ("Reciprocal", {}, SPECIAL, torch.reciprocal),
    ("Relu", {}, SPECIAL, torch.relu),
    ("Round", {}, SPECIAL, torch.round),
    ("Selu", {}, FINITE, lambda x: torch.where(x < 0, 1.67326319 * (x.exp() - 1), x) * 1.05070102),
    ("Sigmoid", {}, SPECIAL, torch.sigmoid),
    ("Shrink", {"lambd": 0.5, "bias": 0.25}, FINITE, lambda x: x.sign() * (x.abs() - 0.25) * (x.abs() > 0.5)),
    ("Sign", {}, FINITE, torch.sign),
    ("Sin", {}, FINITE, torch.sin),
    ("Sinh", {}, UNIT, torch.sinh),
    ("Softplus", {}, SPECIAL, lambda x: torch.logaddexp(x, torch.zeros_like(x))),
    ("Softsign", {}, FINITE, F.softsign),
    ("Sqrt", {}, UNIT + 1, torch.sqrt),
    ("Swish", {}, FINITE, F.silu),
    ("Swish", {"alpha": 1.702}, FINITE, lambda x: x * torch.sigmoid(1.702 * x)),
    ("Tan", {}, UNIT, torch.tan),
    ("Tanh", {}, SPECIAL, torch.tanh),
    ("ThresholdedRelu", {"alpha": 1.5}, FINITE, lambda x: F.threshold(x, 1.5, 0.0)),
]


@pytest.mark.parametrize(
    ("op", "attrs", "x", "oracle"), UNARY, ids=[f"{c[0]}-{i}" for i, c in enumerate(UNARY)]
)
def test_functions_of_one_element_are_torchs(
    op: str, attrs: dict[str, Any], x: NDArray[Any], oracle: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    assert_equal(evaluate(op, x, **attrs)[0], through_torch(oracle, x))


BINARY = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": torch.div,
    "Max": torch.maximum,
    "Min": torch.minimum,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
}


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_nan_wins_on_either_side(op: str) -> None:
    a, b = np.array([np.nan, 1.0]), np.array([1.0, np.nan])
    assert np.isnan(evaluate(op, a, b)[0]).all()


@pytest.mark.parametrize(
    ("op", "oracle"),
    [("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor), ("Equal", np.equal)],
)
def test_logic(op: str, oracle: Callable[..., NDArray[Any]]) -> None:
    a, b = random(2, 4) > 0, random(4, seed=1) > 0
    assert_equal(evaluate(op, a, b)[0], oracle(a, b))
    assert_equal(evaluate("Not", a)[0], ~a)


def test_integers_are_exact_and_wrap() -> None:
    a = np.array([2**62, -7, 7, -7], dtype=np.int64)
    b = np.array([3, 2, -2, -2], dtype=np.int64)
    with np.errstate(over="ignore"):
        assert_equal(evaluate("Mul", a, b, arithmetic="int64")[0], a * b)
    assert_equal(evaluate("Div", a, b, arithmetic="int64")[0], np.array([2**62 // 3, -3, -3, 3]))
    assert_equal(evaluate("Mod", a, b, arithmetic="int64")[0], np.mod(a, b))
    assert_equal(evaluate("Mod", a, b, arithmetic="int64", fmod=1)[0], np.fmod(a, b))
    assert_equal(evaluate("Pow", b, np.array([3, 0, 1, 5]))[0], b ** np.array([3, 0, 1, 5]))
    small = np.array([100, -100], dtype=np.int8)
    with np.errstate(over="ignore"):
        assert_equal(evaluate("Add", small, small)[0], small + small)


def test_shifts_of_unsigned() -> None:
    a, b = np.array([1, 255, 7], dtype=np.uint8), np.array([3, 1, 9], dtype=np.uint8)
    assert_equal(evaluate("BitShift", a, b, direction="LEFT")[0], np.array([8, 254, 0]))
    assert_equal(evaluate("BitShift", a, b, direction="RIGHT")[0], np.array([0, 127, 0]))


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
def test_casts(x: NDArray[Any], to: str, expected: NDArray[Any]) -> None:
    assert_equal(evaluate("Cast", x, to=to)[0], expected)


def test_division_of_integers_by_zero_is_refused() -> None:
    with pytest.raises(ModelFormatError, match="division by zero"):
        evaluate("Div", np.array([1]), np.array([0]))


DTYPES = ("f64", "i64", "u8", "bool")
REQUIRED = {"to": "f32", "direction": "LEFT", "axis": 0}
OPERANDS = {  # where they are not all of one shape and dtype
    "Where": ["bool[2]", "f32[2]", "f32[2]"],
    "BatchNormalization": ["f32[2,3,4]", *["f32[3]"] * 4],
    "RotaryEmbedding": ["f32[1,2,3,4]", "f32[1,3,2]", "f32[1,3,2]"],
}


def answer(op: dict[str, Any], dtype: str) -> str:
    """Empty where inference and the reference know the operator on such operands; else what they say."""
    types = OPERANDS.get(op["name"]) or [f"{dtype}[2,2]"] * op["min_inputs"]
    attrs = {name: REQUIRED[name] for name, default in op["attrs"].items() if default is None}
    try:
        graph = build(op["name"], types, attrs)
        ones = {f"x{i}": np.ones(graph.type((node, 0))[1]) for i, node in enumerate(graph.inputs)}
        _tools.evaluate(graph, ones)
    except ModelFormatError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "op", [each for each in _C.ops() if each["cost_class"] in ("Elementwise", "Transcendental")],
    ids=lambda op: op["name"],
)  # fmt: skip
def test_every_elementwise_operator_has_a_row_in_the_reference(op: dict[str, Any]) -> None:
    answers = [answer(op, dtype) for dtype in DTYPES]
    assert "" in answers, answers
