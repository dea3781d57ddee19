"""Applying a match: the graph before and after as text, refusals, and contexts that must stay valid."""

from __future__ import annotations

import pytest

from torchrlopt import _C
from torchrlopt.errors import SubstitutionError

MERGE = """
substitution merge_matmuls
  y* = MatMul(x, w*)
=>
  w = Concat(w*; axis=-1)
  y = MatMul(x, w)
  y* = Split(y; axis=-1, sizes=dim(w*, -1))
where
  rank(w*) == 2
"""
DOUBLE_NEG = "substitution s\nt = Neg(x)\ny = Neg(t)\n=>\ny = x\n"


def parse(inputs: str, body: str) -> _C.Graph:
    lines = "\n".join("  " + line.strip() for line in body.strip().split("\n"))
    graph = _C.parse_graph(f"graph ({inputs}) {{\n{lines}\n}}\n")
    graph.check()
    return graph


def apply(graph: _C.Graph, text: str, location: int = 0) -> _C.Graph:
    library = _C.Library(text)
    (name,) = library.names
    before = graph.text()
    after = library.apply(graph, name, location)
    assert graph.text() == before, "a graph is a value: applying must not change it"
    after.check()
    return after


def check(inputs: str, body: str, text: str, expected_body: str, location: int = 0) -> None:
    """`text` turns `body` into `expected_body`, up to the names of inner values."""
    after = apply(parse(inputs, body), text, location)
    assert after.canonical_text() == parse(inputs, expected_body).canonical_text()


def refusal(graph: _C.Graph, text: str, location: int = 0) -> str:
    with pytest.raises(SubstitutionError) as caught:
        apply(graph, text, location)
    return str(caught.value)


def test_an_output_becomes_an_existing_value() -> None:
    check("x: f32[2]", "a = Neg(x)\nb = Neg(a)\nc = Relu(b)\nreturn c", DOUBLE_NEG, "c = Relu(x)\nreturn c")


def test_a_graph_output_can_become_an_input() -> None:
    check("x: f32[2]", "a = Neg(x)\nb = Neg(a)\nreturn b", DOUBLE_NEG, "return x")


def test_a_second_consumer_keeps_the_intermediate() -> None:
    check(
        "x: f32[2]",
        "a = Neg(x)\nb = Neg(a)\nc = Relu(a)\nreturn b, c",
        DOUBLE_NEG,
        "a = Neg(x)\nc = Relu(a)\nreturn x, c",
    )


def test_an_intermediate_that_is_a_graph_output_stays() -> None:
    check("x: f32[2]", "a = Neg(x)\nb = Neg(a)\nreturn a, b", DOUBLE_NEG, "a = Neg(x)\nreturn a, x")


def test_surviving_nodes_keep_their_names_and_new_ones_have_none() -> None:
    after = apply(
        parse("x: f32[2]", "a = Neg(x)\nb = Neg(a)\nc = Relu(b)\nreturn c"),
        "substitution s\nt = Neg(x)\ny = Neg(t)\n=>\ny = Identity(x)\n",
    )
    found = {after.node(i)["op"]: after.node(i)["name"] for i in after.topological_order()}
    assert found["Relu"] == "c"
    assert found["Identity"] == ""


def test_a_family_of_unequal_widths_is_one_step() -> None:
    check(
        "x: f32[2,4], %a: f32[4,3], %b: f32[4,5], %c: f32[4,7]",
        "p = MatMul(x, %a)\nq = MatMul(x, %b)\nr = MatMul(x, %c)\ns = Relu(q)\nreturn p, s, r",
        MERGE,
        """w = Concat(%a, %b, %c; axis=-1)
        y = MatMul(x, w)
        p, q, r = Split(y; axis=-1, sizes=[3,5,7])
        s = Relu(q)
        return p, s, r""",
    )


def test_new_nodes_over_weights_are_static() -> None:
    after = apply(
        parse("x: f32[2,4], %a: f32[4,3], %b: f32[4,5]", "p = MatMul(x, %a)\nq = MatMul(x, %b)\nreturn p, q"),
        MERGE,
    )
    nodes = {after.node(i)["op"]: after.node(i)["is_static"] for i in after.topological_order()}
    assert nodes["Concat"]
    assert not nodes["MatMul"]
    assert not nodes["Split"]


def test_symbolic_dims_go_through() -> None:
    check(
        "x: f32[s0,4], %a: f32[4,3], %b: f32[4,5]",
        "p = MatMul(x, %a)\nq = MatMul(x, %b)\nreturn p, q",
        MERGE,
        "w = Concat(%a, %b; axis=-1)\ny = MatMul(x, w)\np, q = Split(y; axis=-1, sizes=[3,5])\nreturn p, q",
    )


def test_a_line_for_each_member() -> None:
    check(
        "x: f32[2,3], z: f32[2,5]",
        "c = Concat(x, z; axis=1)\nd = Relu(c)\nreturn d",
        "substitution s\nc = Concat(x*; axis=a)\ny = Relu(c)\n=>\nt* = Relu(x*)\ny = Concat(t*; axis=a)\n",
        "a = Relu(x)\nb = Relu(z)\nd = Concat(a, b; axis=1)\nreturn d",
    )


def test_attributes_are_passed_on_and_overridden() -> None:
    check(
        "x: f32[1,2,4,4], %w: f32[2,1,1,1]",
        "a = Conv(x, %w; group=2, strides=[2,2])\nb = Relu(a)\nreturn b",
        'substitution s\nt = Conv(x, w; @a)\ny = Relu(t)\n=>\ny = FusedConv(x, w; activation="Relu", @a)\n',
        'b = FusedConv(x, %w; group=2, strides=[2,2], activation="Relu")\nreturn b',
    )


def test_constants_take_the_dtype_of_the_first_tensor() -> None:
    check(
        "x: f16[2]",
        "a = Neg(x)\nreturn a",
        "substitution s\ny = Neg(x)\n=>\ny = Mul(x, -1)\n",
        "c: f16[] = Constant(; value=[-1.0])\na = Mul(x, c)\nreturn a",
    )
    check(
        "x: i64[2]",
        "a = Neg(x)\nreturn a",
        "substitution s\ny = Neg(x)\n=>\ny = Mul(x, -1)\n",
        "c: i64[] = Constant(; int_value=[-1])\na = Mul(x, c)\nreturn a",
    )


def test_a_computed_constant() -> None:
    check(
        "x: f32[2,8]",
        "a = ReduceMean(x; axes=[1], keepdims=0)\nreturn a",
        """substitution s
y = ReduceMean(x; axes=l, keepdims=k)
=>
t = ReduceSum(x; axes=l, keepdims=k)
c = Constant(x; value=[1.0 / dim(x, l[0])])
y = Mul(t, c)
""",
        """t = ReduceSum(x; axes=[1], keepdims=0)
        c: f32[] = Constant(; value=[0.125])
        a = Mul(t, c)
        return a""",
    )


def test_equal_nodes_are_shared() -> None:
    check(
        "x: f32[2], z: f32[2]",
        "r = Relu(x)\na = Sub(x, z)\nb = Neg(a)\nreturn b, r",
        "substitution s\nt = Sub(x, z)\ny = Neg(t)\n=>\nr = Relu(x)\ny = Add(r, z)\n",
        "r = Relu(x)\nb = Add(r, z)\nreturn b, r",
    )


def test_refuses_to_change_a_type() -> None:
    text = "substitution s\ny = Add(x, z)\n=>\ny = x\n"
    graph = parse("x: f32[1], z: f32[2]", "a = Add(x, z)\nreturn a")
    assert "an output would change its type from f32[2] to f32[1]" in refusal(graph, text)


def test_refuses_what_inference_refuses() -> None:
    text = "substitution s\ny = Mul(x, z)\n=>\ny = MatMul(x, z)\n"
    graph = parse("x: f32[2,3], z: f32[2,3]", "a = Mul(x, z)\nreturn a")
    assert "the replacement does not fit: MatMul: expected equal contracted dims" in refusal(graph, text)


def test_refuses_an_attribute_without_a_value() -> None:
    text = "substitution s\ny = Relu(x)\n=>\nt = Reshape(x; shape=[dim(x, 0)])\ny = Relu(t)\n"
    assert "attribute shape of Reshape cannot be computed: [dim(x, 0)] is [s0]" in refusal(
        parse("x: f32[s0]", "a = Relu(x)\nreturn a"), text
    )


def test_refuses_a_step_that_changes_nothing() -> None:
    text = "substitution s\ny = Concat(x, z; axis=a)\n=>\ny = Concat(x, z; axis=norm_axis(a, rank(x)))\n"
    graph = parse("x: f32[1], z: f32[2]", "a = Concat(x, z; axis=-1)\nreturn a")
    after = apply(graph, text)
    assert "axis=0" in after.text()


def test_refuses_to_close_a_cycle() -> None:
    text = """
substitution pair_products
  y = MatMul(x, v)
  z = MatMul(x, w)
=>
  s = Concat(v, w; axis=-1)
  t = MatMul(x, s)
  y, z = Split(t; axis=-1, sizes=[dim(v, -1), dim(w, -1)])
"""
    graph = parse("x: f32[4,4], %a: f32[4,4]", "p = MatMul(x, %a)\nq = Relu(p)\nr = MatMul(x, q)\nreturn r")
    assert "a cycle would close" in refusal(graph, text)


def test_a_location_out_of_range_is_refused() -> None:
    graph = parse("x: f32[2]", "a = Neg(x)\nb = Neg(a)\nreturn b")
    assert "location 1 of 1 matches" in refusal(graph, DOUBLE_NEG, 1)
    with pytest.raises(KeyError):
        _C.Library(DOUBLE_NEG).apply(graph, "unknown", 0)


def test_both_outputs_of_a_node_are_replaced() -> None:
    check(
        "x: f32[2,3]",
        "a, b = Split(x; axis=0, sizes=[1,1])\nc = Relu(a)\nd = Relu(b)\nreturn c, d",
        """substitution s
t, u = Split(x; axis=a, sizes=l)
y = Relu(t)
z = Relu(u)
=>
r = Relu(x)
y, z = Split(r; axis=a, sizes=l)
""",
        "r = Relu(x)\nc, d = Split(r; axis=0, sizes=[1,1])\nreturn c, d",
    )


FOLD = """
substitution fold_factors
  a = Mul(x, c)
  y = Mul(a, d)
=>
  e = Constant(x; value=[value(c) * value(d)])
  y = Mul(x, e)
where
  is_scalar(c) && is_scalar(d)
"""


def factors(dtype: str, first: str, second: str) -> _C.Graph:
    attr = "value" if dtype[0] in "fb" else "int_value"
    return parse(
        f"x: {dtype}[3]",
        f"c: {dtype}[] = Constant(; {attr}=[{first}])\nd: {dtype}[] = Constant(; {attr}=[{second}])\n"
        "a = Mul(x, c)\ny = Mul(a, d)\nreturn y",
    )


@pytest.mark.parametrize(
    ("dtype", "first", "second"),
    [
        ("i8", "100", "100"),
        ("u8", "-1", "1"),
        ("f16", "1000.0", "1000.0"),
        ("bf16", "1e30", "1e30"),
        ("f32", "1e30", "1e30"),
    ],
)
def test_a_constant_that_its_dtype_does_not_hold_is_refused(dtype: str, first: str, second: str) -> None:
    # It would wrap round, or become an infinity, where the original's steps need not.
    assert f"is no {dtype}" in refusal(factors(dtype, first, second), FOLD)


def test_a_constant_that_overflows_a_double_is_refused() -> None:
    assert "the constant of the replacement is inf" in refusal(factors("f64", "1e200", "1e200"), FOLD)


def test_an_integer_constant_that_a_double_rounds_is_not_computed_with() -> None:
    graph = factors("i64", "9007199254740993", "1")
    assert _C.Library(FOLD).matches(graph) == []
    assert "[900719925474099]" in apply(factors("i64", "900719925474099", "1"), FOLD).text()


def test_a_condition_on_a_size_beyond_64_bits_does_not_hold() -> None:
    graph = parse("x: f32[4611686018427387904,4]", "y = Relu(x)\nreturn y")
    for condition in ("size(x) == 1", "size(x) != 1", "0 - (-9223372036854775807 - 1) > 0"):
        library = _C.Library(f"substitution s\ny = Relu(x)\n=>\ny = Abs(x)\nwhere\n{condition}\n")
        assert library.matches(graph) == []
