"""The matcher: where a substitution fires, in which order, and where it must not fire."""

from __future__ import annotations

import pytest

from tests.core.test_apply import MERGE
from tests.core.test_apply import parse as graph
from torchrlopt import _C


def names(of: _C.Graph, text: str) -> list[list[str]]:
    """Outputs of the matched nodes of each match, by their names in the graph's text."""
    library = _C.Library(text)
    (name,) = library.names
    found = library.matches(of, name)
    assert [match["location"] for match in found] == list(range(len(found)))
    outputs = {node["id"]: node["output_names"][0] for node in nodes_of(of)}
    return [[outputs[node] for node in match["nodes"]] for match in found]


def nodes_of(of: _C.Graph) -> list[dict[str, object]]:
    return [of.node(node) for node in of.topological_order()]


def sub(pattern: str, where: str = "", replacement: str = "") -> str:
    """A substitution of which only the pattern matters: it replaces `y` by its first input."""
    replaced = replacement or "y = Identity(x)"
    return f"substitution s\n{pattern}\n=>\n{replaced}\n" + (f"where\n{where}\n" if where else "")


def test_matches_come_in_canonical_order() -> None:
    of = graph("x: f32[2]", "a = Relu(x)\nb = Relu(a)\nc = Neg(b)\nd = Relu(c)\nreturn d")
    assert names(of, sub("y = Relu(x)")) == [["a"], ["b"], ["d"]]


def test_a_pattern_of_two_nodes_follows_the_wires() -> None:
    of = graph("x: f32[2]", "a = Relu(x)\nb = Neg(a)\nc = Relu(b)\nd = Neg(x)\nreturn c, d")
    assert names(of, sub("t = Relu(x)\ny = Neg(t)")) == [["a", "b"]]


def test_commutative_operators_match_in_both_orders() -> None:
    of = graph("x: f32[2], z: f32[2]", "a = Relu(x)\nb = Add(z, a)\nc = Add(a, z)\nreturn b, c")
    assert names(of, sub("t = Relu(x)\ny = Add(t, z)")) == [["a", "b"], ["a", "c"]]


def test_other_operators_do_not() -> None:
    of = graph("x: f32[2], z: f32[2]", "a = Relu(x)\nb = Sub(z, a)\nreturn b")
    assert names(of, sub("t = Relu(x)\ny = Sub(t, z)")) == []


def test_one_tensor_twice_is_one_match() -> None:
    of = graph("x: f32[2]", "a = Add(x, x)\nreturn a")
    assert names(of, sub("y = Add(x, z)")) == [["a"]]


def test_symmetric_matches_are_one() -> None:
    of = graph(
        "x: f32[2,2], %v: f32[2,2], %w: f32[2,2]",
        "a = MatMul(x, %v)\nb = MatMul(x, %w)\nc = Add(a, b)\nreturn c",
    )
    text = sub(
        "t = MatMul(x, v)\nu = MatMul(x, w)\ny = Add(t, u)", replacement="s = Add(v, w)\ny = MatMul(x, s)"
    )
    assert names(of, text) == [["a", "b", "c"]]


def test_a_repeated_name_is_one_tensor() -> None:
    of = graph("x: f32[2], z: f32[2]", "a = Mul(x, z)\nb = Mul(x, x)\nreturn a, b")
    assert names(of, sub("y = Mul(x, x)")) == [["b"]]


def test_two_lines_are_two_nodes() -> None:
    of = graph("x: f32[2]", "a = Relu(x)\nreturn a")
    assert names(of, sub("y = Relu(x)\nz = Relu(x)")) == []


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ("axis=1", []),
        ("axis=a", [["a"], ["b"]]),
        ("axis=0", [["a"]]),
        ("@r", [["a"], ["b"]]),
        ("", [["b"]]),  # what is not named has its default
    ],
)
def test_attributes(attributes: str, found: list[list[str]]) -> None:
    of = graph("x: f32[2,3]", "a = Softmax(x; axis=0)\nb = Softmax(x)\nreturn a, b")
    assert names(of, sub(f"y = Softmax(x; {attributes})" if attributes else "y = Softmax(x)")) == found


def test_an_attribute_bound_twice_must_agree() -> None:
    of = graph(
        "x: f32[2,3]",
        "a = Softmax(x; axis=0)\nb = Softmax(a; axis=0)\nc = Softmax(b; axis=1)\nreturn c",
    )
    assert names(of, sub("t = Softmax(x; axis=a)\ny = Softmax(t; axis=a)")) == [["a", "b"]]
    assert names(of, sub("t = Softmax(x; @a)\ny = Softmax(t; @a)")) == [["a", "b"]]


def test_an_attribute_given_by_an_expression() -> None:
    of = graph(
        "x: f32[2,3,4]",
        """a = Transpose(x; perm=[1,2,0])
        b = Transpose(a; perm=[2,0,1])
        c = Transpose(b; perm=[2,0,1])
        return c""",
    )
    assert names(of, sub("t = Transpose(x; perm=p)\ny = Transpose(t; perm=inverse(p))")) == [["a", "b"]]


def test_optional_inputs() -> None:
    of = graph(
        "x: f32[1,2,4,4], %w: f32[2,2,1,1], %b: f32[2]",
        "a = Conv(x, %w)\nb = Conv(x, %w, %b)\nreturn a, b",
    )
    assert names(of, sub("y = Conv(x, w)")) == [["a"]]
    assert names(of, sub("y = Conv(x, w, _)")) == [["a"]]
    assert names(of, sub("y = Conv(x, w, b)")) == [["b"]]


def test_a_literal_is_a_constant_of_one_element() -> None:
    of = graph(
        "x: f32[2], z: f32[2]",
        """c: f32[1] = Constant(; value=[0.5])
        d: f32[] = Constant(; value=[2.0])
        a = Mul(x, c)
        b = Mul(d, x)
        e = Mul(x, z)
        return a, b, e""",
    )
    assert names(of, sub("y = Mul(x, 0.5)")) == [["a"]]
    assert names(of, sub("y = Mul(x, 2)")) == [["b"]]
    assert names(of, sub("y = Mul(x, c)", "value(c) > 0.1")) == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("dtype", "value", "is_found"),
    [
        ("bf16", 0.044677734375, True),  # what bfloat16 makes of 0.044715; PyTorch computes with the latter
        ("bf16", 0.044921875, False),  # the next one
        ("bf16", 0.04443359375, False),
        ("f16", 0.04470825195312, True),
        ("f16", 0.04473876953125, False),
        ("f16", 0.044677734375, False),
        ("f32", 0.0447149984538555, True),
        ("f32", 0.044677734375, False),
    ],
)
def test_a_literal_may_have_been_rounded_to_half_precision(dtype: str, value: float, is_found: bool) -> None:
    text = f"graph (x: {dtype}[2]) {{ c: {dtype}[] = Constant(; value=[{value}]) a = Mul(x, c) return a }}"
    assert names(_C.parse_graph(text), sub("y = Mul(x, 0.044715)")) == ([["a"]] if is_found else [])


@pytest.mark.parametrize(
    ("where", "fires"),
    [
        ("dim(x, 0) == dim(x, 1)", False),
        ("dim(x, 0) != dim(x, 1)", False),  # s0 may be 3 or not
        ("dim(x, 0) == dim(z, 0)", True),
        ("dim(x, 0) + 1 > dim(z, 0)", True),
        ("dim(x, 0) > 3", False),
        ("!(dim(x, 0) > 3)", False),
        ("dim(x, 0) > 3 || dim(x, 1) == 3", True),
        ("size(x) == 3 * dim(z, 0)", True),
        ("dim(x, 7) == 1", False),
        ("same_shape(x, z)", True),
        ("broadcasts_to(x, y)", True),
        ("is_float(x) && !is_static(x)", True),
    ],
)
def test_undecidable_conditions_do_not_hold_and_neither_do_their_negations(where: str, fires: bool) -> None:
    of = graph("x: f32[s0,3], z: f32[s0,3]", "a = Add(x, z)\nreturn a")
    assert (names(of, sub("y = Add(x, z)", where)) != []) == fires


def test_a_family_takes_all_that_share_the_tensor() -> None:
    of = graph(
        "x: f32[2,4], z: f32[2,4], %a: f32[4,3], %b: f32[4,5], %c: f32[4,7], %d: f32[4,2]",
        "p = MatMul(x, %a)\nq = MatMul(x, %b)\nr = MatMul(x, %c)\ns = MatMul(z, %d)\nreturn p, q, r, s",
    )
    assert names(of, MERGE) == [["p", "q", "r"]]


def test_a_member_for_which_a_condition_fails_is_left_out() -> None:
    of = graph(
        "x: f32[1,2,4], %a: f32[4,3], %b: f32[1,4,5], %c: f32[4,7]",
        "p = MatMul(x, %a)\nq = MatMul(x, %b)\nr = MatMul(x, %c)\nreturn p, q, r",
    )
    assert names(of, MERGE) == [["p", "r"]]


def test_one_member_is_no_family() -> None:
    of = graph("x: f32[2,4], %a: f32[4,3]", "p = MatMul(x, %a)\nreturn p")
    assert names(of, MERGE) == []


def test_members_that_depend_on_each_other_are_no_family() -> None:
    of = graph(
        "x: f32[4,4], %a: f32[4,4], %b: f32[4,4]",
        "p = MatMul(x, %a)\nq = MatMul(x, p)\nr = MatMul(x, %b)\nreturn p, q, r",
    )
    assert names(of, MERGE) == [["p", "r"]]


def test_families_are_parted_by_what_must_be_the_same() -> None:
    of = graph(
        "x: f32[1,4,8,8], %a: f32[2,4,1,1], %b: f32[3,4,3,3], %c: f32[5,4,1,1], %d: f32[1,4,3,3], "
        "%e: f32[2,4,3,3]",
        """p = Conv(x, %a)
        q = Conv(x, %b)
        r = Conv(x, %c)
        s = Conv(x, %d)
        t = Conv(x, %e; strides=[2,2])
        return p, q, r, s, t""",
    )
    text = """
substitution merge_convs
  y* = Conv(x, w*; group=1, strides=s, pads=p, dilations=d)
=>
  w = Concat(w*; axis=0)
  y = Conv(x, w; strides=s, pads=p, dilations=d)
  y* = Split(y; axis=1, sizes=dim(w*, 0))
where
  same(slice(shape(w*), 1, 4))
"""
    assert names(of, text) == [["p", "r"], ["q", "s"]]


def test_a_family_of_chains() -> None:
    of = graph(
        "x: f32[2,4], %a: f32[4,3], %b: f32[4,5], %c: f32[3], %d: f32[5], %e: f32[4,6]",
        """p = MatMul(x, %a)
        q = MatMul(x, %b)
        r = Add(p, %c)
        s = Add(%d, q)
        t = MatMul(x, %e)
        return r, s, t""",
    )
    text = """
substitution merge_linears
  t* = MatMul(x, w*)
  y* = Add(t*, b*)
=>
  w = Concat(w*; axis=-1)
  b = Concat(b*; axis=0)
  t = MatMul(x, w)
  y = Add(t, b)
  y* = Split(y; axis=-1, sizes=dim(w*, -1))
"""
    assert names(of, text) == [["p", "q", "r", "s"]]


CONCAT_OF_RELU = """
substitution move_relu_after_concat
  t* = Relu(x*)
  y = Concat(t*; axis=a)
=>
  c = Concat(x*; axis=a)
  y = Relu(c)
"""


def test_a_variadic_operator_orders_its_family() -> None:
    of = graph(
        "x: f32[2,1], z: f32[2,3]",
        "a = Relu(x)\nb = Relu(z)\nc = Concat(b, a, b; axis=1)\nreturn c",
    )
    assert names(of, CONCAT_OF_RELU) == [["b", "a", "b", "c"]]


def test_every_operand_must_be_a_member() -> None:
    of = graph("x: f32[2,1], z: f32[2,3]", "a = Relu(x)\nb = Neg(z)\nc = Concat(a, b; axis=1)\nreturn c")
    assert names(of, CONCAT_OF_RELU) == []


def test_split_gives_a_family_in_order() -> None:
    text = """
substitution cancel_split_concat
  t* = Split(x; axis=a, sizes=s)
  y = Concat(t*; axis=a)
=>
  y = x
"""
    body = "a, b, c = Split(x; axis=1, sizes=[1,1,1])\nd = Concat({}; axis=1)\nreturn d"
    assert len(names(graph("x: f32[2,3]", body.format("a, b, c")), text)) == 1
    assert names(graph("x: f32[2,3]", body.format("b, a, c")), text) == []
    assert names(graph("x: f32[2,3]", body.format("a, b")), text) == []


def test_matches_of_all_substitutions_are_ordered_by_substitution_then_location() -> None:
    of = graph("x: f32[2]", "a = Relu(x)\nb = Neg(a)\nc = Relu(b)\nreturn c")
    library = _C.Library(sub("y = Neg(x)") + sub("y = Relu(x)").replace("substitution s", "substitution r"))
    found = [(match["name"], match["location"]) for match in library.matches(of)]
    assert found == [("s", 0), ("r", 0), ("r", 1)]


def test_explain_says_what_failed() -> None:
    of = graph("x: f32[2,3]", "a = Relu(x)\nb = Softmax(a; axis=0)\nreturn b")
    library = _C.Library(sub("t = Relu(x)\ny = Softmax(t; axis=-1)"))
    text = library.explain(of, "s")
    assert "Softmax's axis is 0, not -1" in text
    condition = _C.Library(sub("t = Relu(x)\ny = Softmax(t; axis=0)", "rank(x) == 3"))
    assert "condition does not hold: rank(x) == 3" in condition.explain(of, "s")
    missing = _C.Library(sub("y = Tanh(x)"))
    assert missing.explain(of, "s") == "the graph has no Tanh\n"


def test_a_line_is_looked_for_among_the_readers_of_its_rarest_operand() -> None:
    # A search gives up after 50,000 candidates from one start: 300 readers of `x` are 90,000 pairs.
    pattern = "y = Relu(a)\nz = Add(a, b)\nw = Add(a, b)"
    lines = [f"y{i} = Add(x, y{i - 1})" for i in range(1, 300)]
    body = ["y0 = Relu(x)", *lines, "v = Tanh(y299)", "p = Add(x, v)", "q = Add(x, v)", "return y0, p, q"]
    found = names(
        graph("x: f32[4]", "\n".join(body)),
        sub(pattern, replacement=pattern.replace("w = Add(a, b)", "w = z")),
    )
    assert found == [["y0", "p", "q"]]
