"""What is folded in a file before it is read, and what only looks constant."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.onnx.onnx_text import model_of, proto_of
from torchrlopt.onnx.constants import folded
from torchrlopt.onnx.known_sizes import name_sizes
from torchrlopt.onnx.weightless import has_content, without_weights


def fold(body: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A model and what it is folded to, which is valid and has fewer nodes."""
    model = proto_of(body)
    found = folded(model)
    onnx.checker.check_model(found, full_check=True)
    assert len(found.graph.node) < len(model.graph.node)
    return model, found


def counts(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def assert_same(model: onnx.ModelProto, found: onnx.ModelProto, **given: Any) -> None:
    feeds = {name: np.asarray(value) for name, value in given.items()}
    for one, other in zip(
        ReferenceEvaluator(model).run(None, feeds), ReferenceEvaluator(found).run(None, feeds), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_sizes_and_constants_are_folded() -> None:
    model, found = fold(
        """g (float[2,3,4] x) => (float[6,4] y) {
            s = Shape<end=2>(x)  n = ReduceProd(s)  minus = Constant<value_ints=[-1]>()
            sizes = Concat<axis=0>(n, minus)  z = Reshape(x, sizes)  y = Relu(z)
        }"""
    )
    assert counts(found) == {"Reshape": 1, "Relu": 1}
    assert_same(model, found, x=np.random.randn(2, 3, 4).astype(np.float32))


def test_a_default_that_a_call_may_override_is_no_constant() -> None:
    model, found = fold(
        """g (float[2,3] x, bool flag, int64[2] sizes, int64[1] at, int64[1] number)
        => (float[2,3] a, float[A,B] b, int64[1] c, int64[1] d)
        <bool flag = {0}, int64[2] sizes = {2, 3}, int64[1] at = {0}, int64[1] number = {2}> {
            u = Identity(x)  b = Reshape(u, sizes)  s = Shape(u)  c0 = Gather<axis=0>(s, at)  c = Neg(c0)
            d0 = Abs(number)  d = Neg(d0)
            a = If(flag) <then_branch = t () => (float[2,3] p) { p = Relu(u) },
                          else_branch = e () => (float[2,3] q) { q = Neg(u) }>
        }"""
    )
    x = np.array([[1, 2, 3], [-4, 5, 6]], dtype=np.float32)
    assert_same(model, found, x=x)
    assert_same(model, found, x=x, flag=True, sizes=[3, 2], at=[1], number=[-7])


def test_sizes_that_are_not_what_they_seem() -> None:
    """A size less a constant may be negative, a loop's state may grow, and an empty name is no name."""
    text = """g (float[N] x, float[P] z, int64 count)
        => (int64[1] a, float[K] b, float[P] c, float[2] folds, float[N] out) {
            two = Constant<value_floats=[1.0, 2.0]>()  folds0 = Neg(two)  folds = Neg(folds0)
            s = Shape(x)  less = Constant<value_ints=[-5]>()  sum = Add(s, less)  a = Abs(sum)
            yes = Constant<value = bool {1}>()  one = Constant<value_floats=[1.0]>()
            b = Loop(count, yes, one) <body = g (int64 i, bool on, float[1] state)
                                                 => (bool still, float[J] next) {
                still = Identity(on)  size = Shape(state)  number = Cast<to=1>(size)
                next = Concat<axis=0>(state, number)
            }>
            shape = Shape(z)  c0 = Expand(x, shape)  c = Neg(c0)  out = Neg(x)
        }"""
    model = proto_of(text)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in ("N", "P"):
                dim.dim_param = ""
    found = folded(model)
    assert len(found.graph.node) < len(model.graph.node)
    assert_same(model, found, x=np.ones(1, np.float32), z=np.ones(4, np.float32), count=3)


def test_what_is_random_large_or_wrong_is_not_computed() -> None:
    """ONNX's evaluator divides by the wrong norm, and onnxscript computes whatever it throws away."""
    _, found = fold(
        """g (float[2] x) => (float[2] y, float[4] a, float[4] b, float[1,2] c, string[2] text) {
            half = Constant<value_float=0.5>()  four = Constant<value_ints=[4]>()  h = Expand(half, four)
            a0 = Bernoulli(h)  a = Neg(a0)  on = Constant<value = bool {1}>()
            b0 = Dropout(h, half, on)  b = Neg(b0)
            size = Constant<value_ints=[1000000000]>()  huge = Expand(half, size)  most = ReduceMax(huge)
            s = Shape(x)  z = Reshape(x, s)  y = Add(z, most)
            pairs = Constant<value = float[1,2] {3.0, 4.0}>()  c0 = LpNormalization<p=1>(pairs)  c = Neg(c0)
            text0 = Cast<to=8>(four)  text1 = Identity(text0)  text = Concat<axis=0>(text1, text0)
        }"""
    )
    kept = counts(found)
    assert {"Bernoulli", "Dropout", "LpNormalization", "ReduceMax", "Cast"} < set(kept)
    assert kept["Expand"] == 1
    assert "Shape" not in kept


def test_each_output_keeps_its_name_and_its_graph() -> None:
    model, found = fold(
        """g (float[2] x, bool flag) => (float[2] a, float[2] b, float[2] c, float[2] d) {
            a = Neg(x)  b = Identity(a)  s = Shape(a)  c = Reshape(a, s)
            d = If(flag) <then_branch = t () => (float[2] p) { p = Identity(a) },
                          else_branch = e () => (float[2] q) { q = Neg(a) }>
        }"""
    )
    for flag in (True, False):
        assert_same(model, found, x=np.array([1, -2], dtype=np.float32), flag=flag)


@pytest.mark.parametrize(
    ("dims", "body", "target"),
    [
        ("N,T,12", "d = Constant<value_ints=[3,4]>()  to = Concat<axis=0>(n, t, d)", [0, 0, 3, 4]),
        ("N,6,2", "d = Constant<value_ints=[-1]>()  to = Concat<axis=0>(n, d)", [0, 12]),
        ("N,6", "d = Constant<value_ints=[2]>()  h = Div(t, d)  to = Concat<axis=0>(n, h, d)", [0, 3, 2]),
        (
            "N,T",
            "d = Constant<value_ints=[1]>()  to = Concat<axis=0>(n, d, t)",
            None,
        ),  # [0, 1, -1] fails if n is 0
        ("N,T,3", "d = Constant<value_ints=[-1]>()  to = Concat<axis=0>(n, d)", [0, -1]),
        ("N,T", "to = Concat<axis=0>(t, n)", None),  # both sizes move
        ("N,0", "to = Concat<axis=0>(t, n)", None),  # 0 would keep the size at its place
    ],
)
def test_targets_of_reshapes_are_named(dims: str, body: str, target: list[int] | None) -> None:
    model = proto_of(
        f"""g (float[{dims}] x) => (float y) {{
            s = Shape(x)  zero = Constant<value_ints=[0]>()  one = Constant<value_ints=[1]>()
            n = Gather(s, zero)  t = Gather(s, one)  {body}
            z = Reshape(x, to)  y = ReduceSum<keepdims=0>(z)
        }}"""
    )
    found = folded(model)
    weights = {each.name: onnx.numpy_helper.to_array(each).tolist() for each in found.graph.initializer}
    (reshape,) = [node for node in found.graph.node if node.op_type == "Reshape"]
    assert weights.get(reshape.input[1]) == target


def test_what_is_computed_twice_is_computed_once() -> None:
    """Random numbers are not, nor what the check counts."""
    _, found = fold(
        """g (float[N] x) => (float[N] y) {
            n1 = Shape(x)  n2 = Shape(x)  v1, k1 = TopK(x, n1)  v2, k2 = TopK(x, n2)
            r1 = RandomNormalLike(x)  r2 = RandomNormalLike(x)
            q1, s1, z1 = DynamicQuantizeLinear(x)  q2, s2, z2 = DynamicQuantizeLinear(x)
            y = Sum(v1, v2, r1, r2, s1, s2)
        }"""
    )
    assert counts(found) == {
        "Shape": 1,
        "TopK": 1,
        "RandomNormalLike": 2,
        "DynamicQuantizeLinear": 2,
        "Sum": 1,
    }


def test_a_cast_to_the_type_of_what_a_body_returns_is_left_out() -> None:
    _, found = fold(
        """g (float[2,3] x, bool flag) => (float y) {
            z = If(flag) <then_branch = t () => (float[2,3] p) { p = Neg(x) },
                          else_branch = e () => (float[1,6] q) { q = Flatten<axis=0>(x) }>
            c = Cast<to=1>(z)  y = ReduceSum<keepdims=0>(c)
        }"""
    )
    assert counts(found) == {"If": 1, "ReduceSum": 1}


def test_what_a_body_computes_twice_is_computed_once() -> None:
    model = proto_of(
        """g (float[2] x, bool flag) => (float[2] y) {
            y = If(flag) <then_branch = t () => (float[2] p) { a = Neg(x)  b = Neg(x)  p = Mul(a, b) },
                          else_branch = e () => (float[2] q) { q = Identity(x) }>
        }"""
    )
    found = folded(model)
    onnx.checker.check_model(found, full_check=True)
    assert [node.op_type for node in found.graph.node[0].attribute[0].g.node] == ["Neg", "Mul"]
    for flag in (True, False):
        assert_same(model, found, x=np.array([2, 3], np.float32), flag=flag)


def test_names_inside_a_graph_are_not_believed() -> None:
    """Exporters give one name to sizes that differ; so do outputs."""
    model = model_of(
        """g (float[N,T] x, int64[2] sizes) => (float[N,T] y) <float[N,T] z> {
            z = Expand(x, sizes)  w = Shape(z)  v = Expand(x, w)  u = Reshape(v, w)  y = Neg(u)
        }"""
    )
    before = str(model)
    name_sizes(model)
    assert str(model) == before


def test_weights_that_are_not_in_a_file_keep_their_content() -> None:
    """The check puts those of the file back; without others it would compare with whatever memory held."""
    model = proto_of("g (float[2048] x) => (float[2048] y) { y = Sum(x, a, b) }")
    weights = [onnx.numpy_helper.from_array(np.ones(2048, np.float32), name) for name in "ab"]
    model.graph.initializer.extend(weights)
    assert [has_content(each) for each in without_weights(model, {"a"}).graph.initializer] == [False, True]
    assert [has_content(each) for each in without_weights(model).graph.initializer] == [False, False]


@pytest.mark.parametrize(
    ("inputs", "body", "a", "b"),
    [
        ("float[N,3] a, float[M,3] b", "q = SequenceConstruct(a, b)", 1, 5),  # elements of other sizes
        ("float[N,3] a, float[M,3] b", "p = SequenceConstruct(a, b)  q = Identity(p)", 1, 5),
        ("float[?,3] a, float[?,3] b", "q = SequenceConstruct(a, b)", 1, 5),  # no name
    ],
)
def test_sizes_of_one_name_that_differ(inputs: str, body: str, a: int, b: int) -> None:
    model = proto_of(
        f"""g ({inputs}) => (float[A,3] y) {{
            zero = Constant<value_int=0>()  one = Constant<value_int=1>()  {body}
            u = SequenceAt(q, zero)  v = SequenceAt(q, one)  s = Shape(v)  e = Expand(u, s)  y = Neg(e)
        }}""".replace("?", "unnamed")
    )
    for value in model.graph.input:
        dim = value.type.tensor_type.shape.dim[0]
        dim.dim_param = "?" if dim.dim_param == "unnamed" else dim.dim_param
    found = folded(model)
    assert_same(model, found, a=np.ones((a, 3), np.float32), b=np.ones((b, 3), np.float32))


@pytest.mark.parametrize("equation", ["ij, ij -> ij", "...j,...j->...j"])
def test_an_einsum_may_broadcast_a_size(equation: str) -> None:
    model = proto_of(
        f"""g (float[N,3] a, float[M,3] b) => (float[A,3] y) {{
            v = Einsum<equation="{equation}">(a, b)  s = Shape(v)  e = Expand(a, s)  y = Neg(e)
        }}"""
    )
    assert_same(model, folded(model), a=np.ones((1, 3), np.float32), b=np.ones((5, 3), np.float32))


@pytest.mark.parametrize("kind", ["bool", "int8"])
def test_a_cast_may_change_a_size(kind: str) -> None:
    to = onnx.TensorProto.DataType.Value(kind.upper())
    model = proto_of(
        f"""g (float[N,3] x) => (float[A,B] y) {{
            s = Shape(x)  zero = Constant<value_ints=[0]>()  n = Gather(s, zero)  m = Cast<to={to}>(n)
            k = Cast<to=7>(m)  rest = Constant<value_ints=[-1]>()  to = Concat<axis=0>(k, rest)
            z = Reshape(x, to)  y = Neg(z)
        }}"""
    )
    assert_same(model, folded(model), x=np.ones((5 if kind == "bool" else 257, 3), np.float32))


def test_sizes_in_other_forms() -> None:
    """A slice without axes, sizes of a number, and sizes of 32 bits in a file without types."""
    model, found = fold(
        """g (float[2,3,4,5] x, float z, int32[K] v) => (float[A,B,C] y, float w, int32[K] u) {
            s = Shape(x)  start = Constant<value_ints=[0]>()  end = Constant<value_ints=[3]>()
            step = Constant<value_ints=[2]>()  t = Slice(s, start, end, , step)
            rest = Constant<value_ints=[-1]>()  to = Concat<axis=0>(t, rest)  r = Reshape(x, to)  y = Neg(r)
            none = Shape(z)  more = Mul(none, none)  same = Expand(z, more)  w = Neg(same)
            c = Cast<to=6>(s)  d = Gather(c, start)  u = Mul(d, v)
        }"""
    )
    assert counts(found) == {"Reshape": 1, "Neg": 2, "Mul": 1}
    x = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    assert_same(model, found, x=x, z=np.float32(3), v=np.arange(3, dtype=np.int32))
