"""The prime field: csrc/tools/reference/{algebra.h,reference.cpp}.

Over the field an operator equals its decomposition exactly, and wrong identities fail.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.core.core_calls import evaluate
from torchrlopt import _C, _tools
from torchrlopt.errors import ModelFormatError

PRIME = 2**31 - 1


def random_ints(*shape: int, seed: int = 0, high: int = PRIME) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, high, shape)


def run(text: str, arithmetic: str = "field", **arrays: NDArray[Any]) -> NDArray[Any]:
    return _tools.evaluate(_C.parse_graph(text), arrays, arithmetic)[0]


LINEAR: list[tuple[str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("Add", [(2, 3), (3,)], {}),
    ("Sub", [(2, 3), (3,)], {}),
    ("Mul", [(2, 3), (3,)], {}),
    ("Neg", [(5,)], {}),
    ("Sum", [(2, 3), (3,), (1,)], {}),
    ("MatMul", [(2, 3, 4), (4, 5)], {}),
    ("Gemm", [(2, 3), (4, 3), (4,)], {"alpha": 3.0, "beta": -2.0, "transB": 1}),
    ("Conv", [(1, 4, 5, 6), (4, 2, 3, 2), (4,)], {"group": 2, "strides": [2, 1], "pads": [1, 0, 2, 1]}),
    ("ConvTranspose", [(1, 4, 5), (4, 2, 3), (4,)], {"group": 2, "strides": [2]}),
    ("FusedMatMul", [(2, 3), (3, 4), (4,), (2, 4)], {}),
    ("ReduceSum", [(2, 3, 4)], {"axes": [0, 2]}),
    ("ReduceProd", [(2, 3)], {"axes": [1]}),
    ("ReduceSumSquare", [(2, 3)], {"axes": [1]}),
    ("CumSum", [(2, 3)], {"axis": 1}),
    ("Concat", [(2, 3), (2, 2)], {"axis": 1}),
]


@pytest.mark.parametrize(("op", "shapes", "attrs"), LINEAR)
def test_the_field_is_the_integers_mod_the_prime(
    op: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any]
) -> None:
    arrays = [random_ints(*shape, seed=i, high=2**15) - 2**14 for i, shape in enumerate(shapes)]
    reals = [array.astype(float) for array in arrays]
    exact = evaluate(op, *reals, **attrs)[0]  # whole numbers below 2^53
    field = evaluate(op, *reals, arithmetic="field", **attrs)[0]
    np.testing.assert_array_equal(field, exact.astype(np.int64) % PRIME)


PARTS: list[tuple[str, str, dict[str, tuple[int, ...]]]] = [
    (
        "y = BatchNormalization(x, s, b, m, v; epsilon=0.001) return y",
        """e: f32[] = Constant(; value=[0.001])
           d = Sub(x, m) a = Add(v, e) r = Sqrt(a) q = Div(d, r) p = Mul(q, s) y = Add(p, b) return y""",
        {"x": (2, 3), "s": (3,), "b": (3,), "m": (3,), "v": (3,)},
    ),
    (
        "y = LayerNormalization(x, s, b; epsilon=0.001) return y",
        """e: f32[] = Constant(; value=[0.001])
           h: f32[] = Constant(; value=[-0.5])
           m = ReduceMean(x; axes=[-1]) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q; axes=[-1])
           a = Add(v, e) r = Pow(a, h) u = Mul(d, r) p = Mul(u, s) y = Add(p, b) return y""",
        {"x": (2, 5), "s": (5,), "b": (5,)},
    ),
    (
        "y = RMSNormalization(x, s; epsilon=0.001) return y",
        """e: f32[] = Constant(; value=[0.001])
           t: f32[] = Constant(; value=[2.0])
           q = Pow(x, t) v = ReduceMean(q; axes=[-1]) a = Add(v, e) r = Sqrt(a) i = Reciprocal(r)
           u = Mul(x, i) y = Mul(u, s) return y""",
        {"x": (2, 5), "s": (5,)},
    ),
    (
        "y = Softmax(x) return y",
        "e = Exp(x) s = ReduceSum(e; axes=[-1]) y = Div(e, s) return y",
        {"x": (3, 4)},
    ),
    (
        "y = Attention(q, k, v, m) return y",
        """c: f32[] = Constant(; value=[0.5])
           t = Transpose(k; perm=[0,1,3,2]) p = MatMul(q, t) s = Mul(p, c) a = Add(s, m) w = Softmax(a)
           y = MatMul(w, v) return y""",
        {"q": (1, 2, 3, 4), "k": (1, 2, 5, 4), "v": (1, 2, 5, 6), "m": (3, 5)},
    ),
    (
        "y = Swish(x) return y",
        "s = Sigmoid(x) y = Mul(x, s) return y",
        {"x": (7,)},
    ),
    (
        "y = Gelu(x) return y",
        """c: f32[] = Constant(; value=[0.7071067811865476])
           one: f32[] = Constant(; value=[1.0])
           h: f32[] = Constant(; value=[0.5])
           a = Mul(x, c) e = Erf(a) f = Add(e, one) g = Mul(x, f) y = Mul(g, h) return y""",
        {"x": (7,)},
    ),
    (
        "y = ReduceMean(x; axes=[1]) return y",
        "n: f32[] = Constant(; value=[5.0]) s = ReduceSum(x; axes=[1]) y = Div(s, n) return y",
        {"x": (2, 5)},
    ),
    (
        "y = AveragePool(x; kernel_shape=[2], strides=[2]) return y",
        "w: f32[1,1,2] = Constant(; value=[0.5]) y = Conv(x, w; strides=[2]) return y",
        {"x": (2, 1, 6)},
    ),
    (
        "y = Clip(x; min=0.0) return y",
        "z: f32[] = Constant(; value=[0.0]) y = Max(x, z) return y",
        {"x": (7,)},
    ),
    (
        "y = Relu(x) return y",
        "z: f32[] = Constant(; value=[0.0]) c = Greater(x, z) y = Where(c, x, z) return y",
        {"x": (7,)},
    ),
]


def header(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name}: f32[{','.join(map(str, shape))}]" for name, shape in shapes.items())


@pytest.mark.parametrize(("whole", "parts", "shapes"), PARTS)
def test_operators_equal_the_graph_of_their_parts(
    whole: str, parts: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    inputs = header(shapes)
    arrays = {name: random_ints(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    expected = run(f"graph ({inputs}) {{ {parts} }}", **arrays)
    actual = run(f"graph ({inputs}) {{ {whole} }}", **arrays)
    np.testing.assert_array_equal(actual, expected)
    assert len(np.unique(actual)) > 1


def test_a_causal_mask_is_a_selection_of_minus_infinity() -> None:
    q = {"q": (1, 1, 3, 4), "k": (1, 1, 3, 4), "v": (1, 1, 3, 4)}
    arrays: dict[str, NDArray[Any]] = {
        name: random_ints(*shape, seed=i) for i, (name, shape) in enumerate(q.items())
    }
    whole = f"graph ({header(q)}) {{ y = Attention(q, k, v; is_causal=1) return y }}"
    parts = f"""graph ({header(q)}, c: bool[3,3]) {{
      s: f32[] = Constant(; value=[0.5])
      n: f32[] = Constant(; value=[-inf])
      t = Transpose(k; perm=[0,1,3,2]) p = MatMul(q, t) a = Mul(p, s) b = Where(c, a, n) w = Softmax(b)
      y = MatMul(w, v) return y }}"""
    lower = np.tril(np.ones((3, 3), dtype=bool))
    np.testing.assert_array_equal(run(whole, **arrays), run(parts, c=lower, **arrays))


WRONG = [
    ("a = Sigmoid(x) b = Sigmoid(y) z = Add(a, b) return z", "s = Add(x, y) z = Sigmoid(s) return z"),
    ("a = Relu(x) b = Relu(y) z = Add(a, b) return z", "s = Add(x, y) z = Relu(s) return z"),
    ("a = Sqrt(x) b = Sqrt(y) z = Add(a, b) return z", "s = Add(x, y) z = Sqrt(s) return z"),
    ("z = Tanh(x) return z", "z = Erf(x) return z"),
    ("z = Elu(x) return z", "z = Elu(x; alpha=2.0) return z"),
    ("z = Sub(x, y) return z", "z = Sub(y, x) return z"),
    ("z = Max(x, y) return z", "z = Identity(x) return z"),
    ("z = Relu(x) return z", "z = Identity(x) return z"),
    ("z = Softmax(x) return z", "a = Softmax(x; axis=0) z = Identity(a) return z"),
    ('a = Cast(x; to="i32") z = Cast(a; to="f32") return z', "z = Identity(x) return z"),
]


@pytest.mark.parametrize(("left", "right"), WRONG)
def test_wrong_identities_fail_over_the_field(left: str, right: str) -> None:
    arrays = {"x": random_ints(4, 5), "y": random_ints(4, 5, seed=1)}
    inputs = header({"x": (4, 5), "y": (4, 5)})
    a = run(f"graph ({inputs}) {{ {left} }}", **arrays)
    b = run(f"graph ({inputs}) {{ {right} }}", **arrays)
    assert np.any(a != b)


dyadic = st.builds(lambda m, e: m * 2.0**e, st.integers(-(2**20), 2**20), st.integers(-12, 12))


@given(dyadic, dyadic)
def test_constants_map_homomorphically(a: float, b: float) -> None:
    """Sums and products of doubles that are exact as doubles are exact in the field."""

    def value(number: float) -> int:
        return int(evaluate("ConstantOfShape", arithmetic="field", shape=[], value=number)[0])

    assert value(a + b) == (value(a) + value(b)) % PRIME
    assert value(a * b) == value(a) * value(b) % PRIME
    assert value(-a) == -value(a) % PRIME


@given(st.integers(1, PRIME - 1))
def test_division_is_by_the_modular_inverse(a: int) -> None:
    inverse = evaluate("Reciprocal", np.array([float(a)]), arithmetic="field")[0]
    assert int(inverse[0]) * a % PRIME == 1


def test_numbers_of_one_third_and_minus_one() -> None:
    x = np.array([1.0, -1.0, 0.0])
    assert evaluate("Div", x, np.array([3.0]), arithmetic="field")[0].tolist() == [
        pow(3, -1, PRIME),
        -pow(3, -1, PRIME) % PRIME,
        0,
    ]


def test_integer_dtypes_stay_integers_over_the_field() -> None:
    """Indices take part in a graph over the field without being reduced or inverted."""
    text = """graph (x: f32[5,2], i: i64[2]) {
      t: i64[] = Constant(; int_value=[2])
      j = Div(i, t) y = Gather(x, j) return y }"""
    x = random_ints(5, 2)
    np.testing.assert_array_equal(run(text, x=x, i=np.array([9, -3])), x[[4, -1]])


def test_bad_data_is_refused() -> None:
    graph = _C.parse_graph("graph (x: f32[2]) { y = Relu(x) return y }")
    with pytest.raises(ModelFormatError, match="no data for input 'x'"):
        _tools.evaluate(graph, {})
    with pytest.raises(ModelFormatError, match=r"expected f32\[2\], got shape \[3\]"):
        _tools.evaluate(graph, {"x": np.zeros(3)})
    with pytest.raises(ModelFormatError, match="expected float64 or field"):
        _tools.evaluate(graph, {"x": np.zeros(2)}, "float32")


def test_what_has_no_reference_is_refused() -> None:
    builder = _C.GraphBuilder()
    opaque = builder.add_leaf("Opaque", [], {"op": "mystery"}, [("f32", [2])])
    builder.set_outputs([(opaque, 0)], ["y"])
    with pytest.raises(ModelFormatError, match="Opaque: the reference has no such operator"):
        _tools.evaluate(builder.finish(), {})


def test_symbolic_dims_cannot_be_evaluated() -> None:
    graph = _C.parse_graph("graph (x: f32[s0]) { y = Relu(x) return y }")
    with pytest.raises(ModelFormatError, match="s0 is symbolic"):
        _tools.evaluate(graph, {"x": np.zeros(2)})
