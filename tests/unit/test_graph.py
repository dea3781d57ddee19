"""Graph, builder, text and hash: csrc/core/, csrc/infer/parse.cpp."""

from __future__ import annotations

import pytest

from torchrlopt import _C
from torchrlopt.errors import ModelFormatError

BLOCK = """
graph (x: f32[1,3,s0,8], %w: f32[8,3,3,3]) {
  y = Conv(x, %w; strides=[1,1], pads=[1,1,1,1])
  z = Relu(y)
  a, b = Split(z; axis=1, sizes=[3,5])
  return a, b
}
"""


def test_print_is_the_inverse_of_parse() -> None:
    graph = _C.parse_graph(BLOCK)
    graph.check()
    again = _C.parse_graph(graph.text())
    assert again.text() == graph.text()
    assert again.hash() == graph.hash()
    assert graph.num_operators == 3


def test_symbolic_dims_are_carried() -> None:
    graph = _C.parse_graph(BLOCK)
    assert graph.type(graph.outputs[0]) == ("f32", [1, 3, "s0", 8])


@pytest.mark.parametrize("dim", ["s0", "2*s0+1", "s0*s1", "-s0+8", "(s0+1)//(2)"])
def test_dims_print_as_they_parse(dim: str) -> None:
    graph = _C.parse_graph(f"graph (x: f32[{dim}]) {{ y = Relu(x) return y }}")
    assert graph.type(graph.outputs[0]) == ("f32", [dim])


def test_equal_polynomials_are_equal_dims() -> None:
    graph = _C.parse_graph("graph (x: f32[s0*2+s0], y: f32[3*s0]) { z = Add(x, y) return z }")
    assert graph.type(graph.outputs[0]) == ("f32", ["3*s0"])


def test_hash_does_not_depend_on_names_of_inner_nodes() -> None:
    other = BLOCK.replace("y =", "conv =").replace("Relu(y)", "Relu(conv)")
    assert _C.parse_graph(BLOCK).hash() == _C.parse_graph(other).hash()
    assert _C.parse_graph(BLOCK).canonical_text() == _C.parse_graph(other).canonical_text()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pads=[1,1,1,1]", "pads=[1,1,1,2]"),
        ("Relu", "Sigmoid"),
        ("sizes=[3,5]", "sizes=[4,4]"),
        ("return a, b", "return b, a"),
        ("f32[1,3,s0,8]", "f32[1,3,s1,8]"),
    ],
)
def test_hash_sees_every_difference(old: str, new: str) -> None:
    changed = BLOCK.replace(old, new)
    assert changed != BLOCK
    assert _C.parse_graph(BLOCK).hash() != _C.parse_graph(changed).hash()
    assert _C.parse_graph(BLOCK).canonical_text() != _C.parse_graph(changed).canonical_text()


def test_hash_is_the_same_in_every_process() -> None:
    # A golden value: a hash from addresses or from std::hash would not keep it.
    graph = _C.parse_graph("graph (x: f32[2]) { y = Relu(x) return y }")
    assert graph.hash() == 4091207248264007426


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph (x: f32[2]) { y = Relu(z) return y }", "line 1: expected a value defined above, got 'z'"),
        ("graph (x: f32[2]) {\n y = Relux(x)\n return y }", "line 2: expected an operator of ops.def"),
        ("graph (x: f32[2]) { y = Relu(x; alpha=1) return y }", "unknown attribute 'alpha'"),
        ("graph (x: f32[2]) { y = Transpose(x; perm=3) return y }", "attribute 'perm' must be list of ints"),
        ("graph (x: f32[2]) { y = Concat(x) return y }", "required attribute 'axis' is missing"),
        ("graph (x: f32[2]) { x = Relu(x) return x }", "'x' is defined twice"),
        ("graph (x: f99[2]) { return x }", "unknown dtype 'f99'"),
        ("graph (x: f32[2) { return x }", "expected ']'"),
        ("graph (x: f32[2]) { a, b = Relu(x) return a }", "gives 1 outputs, the text names 2"),
        ("graph (x: f32[2]) { return x } trailing", "nothing after the closing brace"),
        ("graph (x: f32[2", "expected ']'"),
        ("", "expected 'graph'"),
    ],
)
def test_malformed_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ModelFormatError) as caught:
        _C.parse_graph(text)
    assert message in str(caught.value)


def test_deeply_nested_dimension_is_refused_not_a_crash() -> None:
    with pytest.raises(ModelFormatError):
        _C.parse_graph("graph (x: f32[" + "(" * 100000 + "]) { return x }")


def test_builder_makes_what_the_text_says() -> None:
    builder = _C.GraphBuilder()
    x = builder.add_input("x", ("f32", [1, 3, "s0", 8]))
    w = builder.add_input("w", ("f32", [8, 3, 3, 3]), is_weight=True)
    conv = builder.add_node("Conv", [(x, 0), (w, 0), None], {"strides": [1, 1], "pads": [1, 1, 1, 1]})
    relu = builder.add_node("Relu", [(conv, 0)], {})
    split = builder.add_node("Split", [(relu, 0)], {"axis": 1, "sizes": [3, 5]})
    builder.set_outputs([(split, 0), (split, 1)], ["a", "b"])
    graph = builder.finish()
    graph.check()
    assert graph.node(w)["is_static"]
    assert not graph.node(conv)["is_static"]
    assert graph.node(split)["types"] == [("f32", [1, 3, "s0", 8]), ("f32", [1, 5, "s0", 8])]


def test_opaque_nodes_keep_their_given_types() -> None:
    builder = _C.GraphBuilder()
    x = builder.add_input("x", ("f32", [2]))
    opaque = builder.add_leaf("Opaque", [(x, 0)], {"op": "my.domain::Foo"}, [("i64", ["u0"]), ("f32", None)])
    builder.set_outputs([(opaque, 0), (opaque, 1)], ["a", "b"])
    graph = builder.finish()
    graph.check()
    assert graph.type((opaque, 0)) == ("i64", ["u0"])
    assert graph.type((opaque, 1)) == ("f32", None)
    assert _C.parse_graph(graph.text()).hash() == graph.hash()


def test_builder_refuses_a_dangling_value() -> None:
    builder = _C.GraphBuilder()
    with pytest.raises(IndexError, match="the graph has no node 7"):
        builder.add_leaf("Opaque", [(7, 0)], {"op": "x"}, [("f32", [1])])


def test_expressions_over_weights_are_static() -> None:
    graph = _C.parse_graph(
        "graph (x: f32[2,2], %w: f32[2,2]) { t = Transpose(%w; perm=[1,0]) y = MatMul(x, t) return y }"
    )
    static = {graph.node(i)["op"]: graph.node(i)["is_static"] for i in graph.topological_order()}
    assert static == {"Input": False, "Weight": True, "Transpose": True, "MatMul": False}


def test_every_operator_has_a_complete_row() -> None:
    table = _C.ops()
    names = [op["name"] for op in table]
    assert len(set(names)) == len(names)
    assert sum(op["is_typed"] for op in table) >= 90
