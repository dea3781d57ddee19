"""Values that are bitwise reproducible everywhere, and are later rounded or compared, keep their bits."""

from __future__ import annotations

import pytest

from torchrlopt import _C
from torchrlopt.substitutions import load_library


def kept(text: str) -> list[str]:
    """Operators that keep their bits, in topological order."""
    graph = _C.parse_graph(text)
    graph.check()
    nodes = [graph.node(id_) for id_ in graph.topological_order()]
    return [node["op"] for node in nodes if node["keeps_bits"]]


def matches(text: str, name: str) -> int:
    return len(load_library().matches(_C.parse_graph(text), name))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Div(x, c) y = Floor(a)", ["Div"]),
        ('a = Div(x, c) b = Reshape(a; shape=[8]) y = Cast(b; to="i64")', ["Div", "Reshape"]),
        ("a = Div(x, c) b = Add(a, x) y = Greater(b, x)", ["Div", "Add"]),
        ("a = Div(x, c) y = ArgMax(a; axis=1)", ["Div"]),
        ("a = Div(x, c) y, z = TopK(a; k=2)", ["Div"]),
        ('a = Div(x, c) y: f32[2,4] = Opaque(a; op="other")', ["Div"]),
        ("a = Div(x, c) y = Sqrt(a)", ["Div"]),
        ("a = Mul(x, c) b = Sub(a, x) y = Div(x, b)", ["Mul", "Sub"]),
        ("a = Mul(x, c) y = Div(a, x)", []),
        ("a = Mul(x, c) d: f32[] = Constant(; value=[2.0]) y = Pow(a, d)", []),
        ("a = Mul(x, c) d: f32[] = Constant(; value=[-2.0]) y = Pow(a, d)", ["Mul"]),
        ("a = Mul(%w, c) b = Sqrt(a) y = MatMul(x, b)", []),
        # Nothing decides by the last digit.
        ("a = Div(x, c) y = Relu(a)", []),
        ('a = Div(x, c) y = Cast(a; to="f16")', []),
        ("a = Div(x, c) b = Exp(a) y = Floor(b)", []),
        # The last digit differs between machines as it is.
        ("a = Exp(x) b = Div(a, c) y = Floor(b)", []),
        ("a = MatMul(x, %w) b = Add(a, x) y = Floor(b)", []),
        ('a: f32[2,4] = Opaque(x; op="other") b = Div(a, c) y = Floor(b)', []),
        # An integer is the same everywhere, wherever it came from.
        (
            'a = Exp(x) b = ArgMax(a; axis=1) d = Cast(b; to="f32") e = Div(d, c) y = Floor(e)',
            ["Cast", "Div"],
        ),
    ],
)
def test_which_nodes(body: str, expected: list[str]) -> None:
    returned = "y, z" if "z = TopK" in body else "y"
    inputs = "x: f32[2,4], %w: f32[4,4]"
    body = f"c: f32[] = Constant(; value=[61.0]) {body} return {returned}"
    assert kept(f"graph ({inputs}) {{ {body} }}") == expected


QUOTIENT = "graph (x: f32[8]) {{ c: f32[] = Constant(; value=[61.0]) a = Div(x, c) {rest} return y }}"


def test_a_quotient_becomes_no_product_where_the_last_digit_decides() -> None:
    assert matches(QUOTIENT.format(rest="y = Relu(a)"), "normalise_div_scalar") == 1
    assert matches(QUOTIENT.format(rest="y = Floor(a)"), "normalise_div_scalar") == 0
    assert matches(QUOTIENT.format(rest="b = Neg(a) y = Floor(b)"), "normalise_div_scalar") == 0


def test_substitutions_that_keep_the_bits_fire() -> None:
    text = QUOTIENT.format(rest="b = Transpose(a; perm=[0]) y = Floor(b)")
    library = load_library()
    found = {match["name"] for match in library.matches(_C.parse_graph(text))}
    assert found
    assert all(library.is_exact(name) for name in found)


def test_a_step_that_takes_the_rounding_away_sets_its_operands_free() -> None:
    forget = """
substitution forget exact
  t = Floor(x)
  y = Sub(t, t)
=>
  y = Sub(x, x)
"""
    text = load_library().text("normalise_div_scalar")
    library = _C.Library(text + forget)
    before = _C.parse_graph(QUOTIENT.format(rest="b = Floor(a) y = Sub(b, b)"))
    after = library.apply(before, "forget", 0)
    after.check()
    matches = _C.MatchSet(before, library).after(after, library).matches(library)
    assert matches == library.matches(after)
    assert [match["name"] for match in matches] == ["normalise_div_scalar"]
    assert [match["name"] for match in library.matches(before)] == ["forget"]
