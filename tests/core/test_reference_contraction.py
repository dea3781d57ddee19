"""Products, convolutions, attention: csrc/tools/reference/{contraction,windows,attention}.cpp."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from tests.core.core_calls import assert_equal, evaluate, infer, onnx_shapes, random
from torchrlopt.errors import ModelFormatError


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
        ("i,i->", [(3,), (3,)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
        ("ij,kj,ik->j", [(2, 3), (4, 3), (2, 4)]),
        ("ji", [(2, 3)]),
        ("b...,c->cb...", [(2, 3, 4), (5,)]),
        (" i j , j -> i ", [(2, 3), (3,)]),
        ("ij,ij->ij", [(1, 3), (2, 3)]),
    ],
)
def test_einsum_is_numpys(equation: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [random(*shape, seed=i) for i, shape in enumerate(shapes)]
    assert_equal(evaluate("Einsum", *arrays, equation=equation)[0], np.einsum(equation, *arrays))


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
    assert onnx_shapes("Conv", x, w, b, **attrs) == [expected.shape]
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


def masks(shape: tuple[int, ...]) -> list[NDArray[Any]]:
    """Additive, and boolean with no row that is masked altogether."""
    allowed = random(*shape, seed=9) > -0.5
    allowed[..., 0] = True
    return [random(*shape, seed=8), allowed]


def test_a_row_that_is_masked_altogether_gives_zeros() -> None:
    q, k = random(1, 1, 2, 3), random(1, 1, 4, 3, seed=1)
    mask = np.array([[True, False, True, True], [False] * 4])
    result = evaluate("Attention", q, k, k, mask)[0]
    assert np.all(result[0, 0, 1] == 0)
    assert np.all(result[0, 0, 0] != 0)


@pytest.mark.parametrize(
    ("op", "types", "attrs", "message"),
    [
        ("MatMul", ["f32[2,3]", "f32[2,3]"], {}, "equal contracted dims"),
        ("MatMul", ["f32[2,3]", "f16[3,2]"], {}, "one dtype"),
        ("MatMul", ["f32[]", "f32[3,2]"], {}, "rank 1 to 64"),
        ("MatMul", ["bool[2,2]", "bool[2,2]"], {}, "numeric"),
        ("MatMul", ["f32[2,3,4]", "f32[3,4,5]"], {}, "broadcast"),
        ("FusedMatMul", ["f32[2,3]", "f32[3,4]", "f32[2,1,4]"], {}, r"broadcasts to \[2,4\]"),
        ("FusedMatMul", ["f32[2,3]", "f32[3,4]", None, "f32[4]"], {}, r"shape \[2,4\]"),
        ("FusedMatMul", ["f32[2,3]", "f32[3,4]"], {"activation": "relu"}, "activation"),
        ("Gemm", ["f32[2,3]", "f32[3,4]", "f32[3]"], {}, "broadcasts to"),
        ("Gemm", ["f32[2,3]", "f32[3,4]"], {"transB": 1}, "contracted"),
        ("Einsum", ["f32[2,3]", "f32[4,2]"], {"equation": "ij,jk->ik"}, "one size per label"),
        ("Einsum", ["f32[2,3]"], {"equation": "ij,jk->ik"}, "2 operands"),
        ("Einsum", ["f32[2,3]"], {"equation": "ij->ijk"}, "output labels"),
        ("Einsum", ["f32[2,3]"], {"equation": "ij->ii"}, "distinct output labels"),
        ("Einsum", ["f32[2,3]"], {"equation": "i$->i"}, "letters"),
        ("Einsum", ["f32[2,3]"], {"equation": "ijk->i"}, "rank 3"),
        ("Conv", ["f32[1,3,5,5]", "f32[4,2,3,3]"], {}, "input channels"),
        ("Conv", ["f32[1,4,5,5]", "f32[3,2,3,3]"], {"group": 2}, "group divides"),
        ("Conv", ["f32[1,4,5,5]", "f32[4,4,3,3]"], {"group": 0}, "positive group"),
        ("Conv", ["f32[1,3,2,5]", "f32[4,3,3,3]"], {}, "within the padded input"),
        ("Conv", ["f32[1,3,5,5]", "f32[4,3,3]"], {}, "rank 4"),
        ("Conv", ["f32[1,3,5,5]", "f32[4,3,3,3]", "f32[3]"], {}, r"shape \[4\]"),
        ("Conv", ["f32[1,3,5,5]", "f32[4,3,3,3]"], {"strides": [1]}, "2 strides"),
        ("Conv", ["f32[1,3,5,5]", "f32[4,3,3,3]"], {"strides": [0, 1]}, "at least 1"),
        ("Conv", ["f32[1,3,5,5]", "f32[4,3,3,3]"], {"pads": [-1, 0, 0, 0]}, "at least 0"),
        ("Conv", ["i64[1,3,5,5]", "i64[4,3,3,3]"], {}, "floating"),
        ("FusedConv", ["f32[1,3,5,5]", "f32[4,3,3,3]", None, "f32[1,4,1,1]"], {}, r"shape \[1,4,3,3\]"),
        ("ConvTranspose", ["f32[1,3,5,5]", "f32[4,3,3,3]"], {}, "input channels"),
        ("ConvTranspose", ["f32[1,3,5]", "f32[3,2,3]"], {"group": 2}, "group divides"),
        ("ConvTranspose", ["f32[1,3,5]", "f32[3,2,3]"], {"output_padding": [1]}, "below the stride"),
        ("Attention", ["f32[1,2,3,4]"] * 2 + ["f32[1,2,4,4]"], {}, "as many keys as values"),
        ("Attention", ["f32[1,3,3,4]", "f32[1,2,3,4]", "f32[1,2,3,4]"], {}, "multiple of the key heads"),
        ("Attention", ["f32[1,3,8]"] * 3, {}, "head counts"),
        ("Attention", ["f32[1,3,8]"] * 3, {"q_num_heads": 3, "kv_num_heads": 3}, "head count divides"),
        ("Attention", ["f32[1,2,3,4]"] * 3 + ["f32[3,2]"], {}, "broadcasts to"),
        ("Attention", ["f32[1,2,3,4]"] * 3 + ["f16[3,3]"], {}, "one dtype"),
        ("RotaryEmbedding", ["f32[1,2,3,5]", "f32[1,3,2]", "f32[1,3,2]"], {}, "even rotated size"),
        ("RotaryEmbedding", ["f32[1,3,8]", "f32[1,3,4]", "f32[1,3,4]"], {}, "num_heads"),
    ],
)
def test_refusals(op: str, types: list[str | None], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=f"^{op}: expected .*{message}.*, got "):
        infer(op, *types, **attrs)


def test_a_group_that_divides_channels_is_accepted_by_each() -> None:
    assert infer("Conv", "f32[1,4,5,5]", "f32[4,2,3,3]", group=2) == ["f32[1,4,3,3]"]
    assert infer("ConvTranspose", "f32[1,4,5]", "f32[4,3,3]", group=2) == ["f32[1,6,7]"]
