"""Graph, builder, text and hash: csrc/core/, csrc/infer/parse.cpp."""

from __future__ import annotations

import locale

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


@pytest.mark.parametrize("dim", ["s0", "2*s0+1", "s0*s1", "-s0+8", "(s0+1)//(2)"])
def test_dims_print_as_they_parse(dim: str) -> None:
    graph = _C.parse_graph(f"graph (x: f32[{dim}]) {{ y = Relu(x) return y }}")
    assert graph.type(graph.outputs[0]) == ("f32", [dim])


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
        ("graph (x: f32[2]) { return _ }", "expected a value, got '_'"),
        ("graph (x: f32[2]) {\n y = Elu(x; alpha=1e999) return y }", "line 2: expected a number of 64 bits"),
        ("graph (x: f32[2]) { y = Elu(x; alpha=1e) return y }", "expected a number of 64 bits, got '1e'"),
        ("graph (x: f32[2]) { y = Softmax(x; axis=0x0) return y }", "expected a number of 64 bits"),
        ("graph (x: f32[2]) { y = Softmax(x; axis=99999999999999999999) return y }", "a number of 64 bits"),
        ("graph (x: f32[2]) { y = Softmax(x; axis=", "expected a number, got ''"),
        ("graph (\n x: f32[-5]) { return x }", "line 2: a size below 0 in f32[-5]"),
        ("graph (x: f32[(-9223372036854775807-1)//(-1)]) { return x }", "overflows 64 bits"),
        ("graph (x: f32[(-9223372036854775807-1)*s0//(-1*s0)]) { return x }", "overflows 64 bits"),
        ("graph (x: f32[4611686018427387904*s0*4]) { return x }", "overflows 64 bits"),
        ("graph (x: f32[9223372036854775807*s0+s0]) { return x }", "overflows 64 bits"),
        (
            'graph (x: f32[s0]) { y = Resize(x; scales=[1e300], mode="nearest") return y }',
            "expected positive scales and sizes below 2^53",
        ),
        (
            'graph (x: f32[9000000000000000]) { y = Resize(x; scales=[2.0], mode="nearest") return y }',
            "expected positive scales and sizes below 2^53",
        ),
    ],
)
def test_malformed_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ModelFormatError) as caught:
        _C.parse_graph(text)
    assert message in str(caught.value)


def test_deeply_nested_dimension_is_refused_not_a_crash() -> None:
    with pytest.raises(ModelFormatError):
        _C.parse_graph("graph (x: f32[" + "(" * 100000 + "]) { return x }")


@pytest.mark.parametrize(
    "dim",
    [
        "+".join(f"s{i}" for i in range(5000)),
        "*".join(["(a+b+c+d+e+f+g+h)"] * 8),
        "*".join(["long_name"] * 500),
    ],
    ids=["sum", "product", "power"],
)
def test_a_dimension_has_a_limit(dim: str) -> None:
    with pytest.raises(ModelFormatError, match="a dimension of more than 4096 characters"):
        _C.parse_graph(f"graph (x: f32[{dim}]) {{ return x }}")


def test_steps_that_square_a_size_come_to_the_limit() -> None:
    # Of 2^k factors after k steps: what has no type is left to the caller, who keeps the operator as it is.
    builder = _C.GraphBuilder()
    value = (builder.add_input("x", ("f32", ["batch", "batch"])), 0)

    def square(value: _C.Value) -> _C.Value:
        flat = (builder.add_node("Flatten", [value], {"axis": 0}), 0)
        column = (builder.add_node("Transpose", [flat], {"perm": [1, 0]}), 0)
        return builder.add_node("MatMul", [column, flat], {}), 0

    for _ in range(9):
        value = square(value)
    with pytest.raises(ModelFormatError, match="more than 4096 characters"):
        square(value)


@pytest.mark.parametrize("number", ["1e-320", "5e-324", "1e+300", "inf", "-inf", "0.1", "-0.0"])
def test_numbers_print_as_they_parse(number: str) -> None:
    graph = _C.parse_graph(f"graph (x: f32[2]) {{ y = Elu(x; alpha={number}) return y }}")
    assert _C.parse_graph(graph.text()).hash() == graph.hash()


@pytest.mark.parametrize("word", ['say "no"', "back\\slash", 'both \\" ', "two\nlines"])
def test_words_print_as_they_parse(word: str) -> None:
    builder = _C.GraphBuilder()
    x = builder.add_input("x", ("f32", [2]))
    opaque = builder.add_leaf("Opaque", [(x, 0)], {"op": word}, [("f32", [2])])
    builder.set_outputs([(opaque, 0)], ["y"])
    graph = builder.finish()
    assert _C.parse_graph(graph.text()).hash() == graph.hash()


def test_numbers_do_not_depend_on_the_locale() -> None:
    try:
        locale.setlocale(locale.LC_NUMERIC, "de_DE.UTF-8")
    except locale.Error:
        pytest.skip("the locale de_DE.UTF-8 is not installed")
    try:
        graph = _C.parse_graph("graph (x: f32[2]) { y = Elu(x; alpha=0.5) return y }")
        assert "alpha=0.5)" in graph.text()
    finally:
        locale.setlocale(locale.LC_NUMERIC, "C")


def test_builder_refuses_a_size_below_zero() -> None:
    builder = _C.GraphBuilder()
    with pytest.raises(ModelFormatError, match="a size below 0"):
        builder.add_input("x", ("f32", [2, -1]))
    with pytest.raises(ModelFormatError, match="a size below 0"):
        builder.add_leaf("Opaque", [], {"op": "x"}, [("f32", [-1])])


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


def test_hashes_stay_what_stored_plans_say() -> None:
    """Fails if an operator gets another id, words another meaning, or a hash depends on addresses."""
    graph = _C.parse_graph("""graph (x: f32[8,64], %a: f32[64,64], %b: f32[64,64]) {
  p = MatMul(x, %a)
  q = MatMul(x, %b)
  y = Add(p, q)
  z = Shrink(y)
  s = Softmax(z)
  return s
}""")
    assert graph.hash() == 3230971939038668870
