"""Substitution text: round trips, and refusals with the name, the line and the reason."""

from __future__ import annotations

import pytest

from torchrlopt import _C
from torchrlopt.errors import SubstitutionError

GOOD = """
# family: merge
# Matmuls that read the same left operand
# become one wide matmul.
substitution merge_matmul_shared_lhs exact
  y* = MatMul(x, w*)
=>
  w = Concat(w*; axis=-1)   # w and w* are different names
  y = MatMul(x, w)
  y* = Split(y; axis=-1, sizes=dim(w*, -1))
where
  rank(w*) == 2, is_static(w*)
proof z3 9f3c21d0
"""


def test_reads_names_docs_family_flag_and_proof() -> None:
    library = _C.Library(GOOD)
    name = "merge_matmul_shared_lhs"
    assert library.names == [name]
    assert library.doc(name) == "Matmuls that read the same left operand\nbecome one wide matmul."
    assert library.family(name) == "merge"
    assert library.is_exact(name)
    assert library.proof(name) == "z3 9f3c21d0"


def test_printed_text_reads_back_to_itself() -> None:
    text = _C.Library(GOOD).text("merge_matmul_shared_lhs")
    assert _C.Library(text).text("merge_matmul_shared_lhs") == text


@pytest.mark.parametrize(
    "condition",
    [
        "(rank(a) + 1) * 2 == 6",
        "rank(a) - (rank(b) - 1) == 1",
        "!(rank(a) == 2 || rank(b) == 3) && is_static(b)",
        "shape(a)[-1] == -1 * dim(b, 0)",
        'dtype(a) == "f32"',
        "contains([1, 2, 3], rank(a) % 2)",
        "value(b) == 0.5 || value(b) == -inf",
    ],
)
def test_conditions_print_as_they_are_read(condition: str) -> None:
    text = f"substitution s\n  y = Sub(a, b)\n=>\n  y = Neg(a)\nwhere\n  {condition}\n"
    assert _C.Library(text).text("s") == text


def test_hash_ignores_order_and_comments_but_not_content() -> None:
    first = "substitution a\n  y = Relu(x)\n=>\n  y = x\n"
    second = "substitution b\n  y = Neg(x)\n=>\n  y = x\n"
    together = _C.Library(first + second).hash
    assert _C.Library("# a comment\n" + second + "\n" + first).hash == together
    assert _C.Library(first + second.replace("Neg", "Abs")).hash != together


def refusal(text: str) -> SubstitutionError:
    with pytest.raises(SubstitutionError) as caught:
        _C.Library(text)
    return caught.value


def one(pattern: str, replacement: str = "y = Relu(x)", where: str = "") -> str:
    """A substitution named s: its pattern starts on line 2."""
    lines = ["substitution s", *pattern.split("\n"), "=>", *replacement.split("\n")]
    if where:
        lines += ["where", *where.split("\n")]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (one("y = Frobnicate(x)"), 2, "unknown operator 'Frobnicate'"),
        (one("y = Relu(x, x)"), 2, "Relu takes 1 inputs, got 2"),
        (one("y = MatMul(x)"), 2, "MatMul takes 2 inputs, got 1"),
        (one("y = MatMul(_, x)"), 2, "input 1 of MatMul cannot be omitted"),
        (one("y, z = Relu(x)"), 2, "Relu has 1 outputs, got 2"),
        (one("y = Relu(x; alpha=1)"), 2, "Relu has no attribute 'alpha'; it has none"),
        (one("y = Softmax(x; axis=1, axis=2)"), 2, "attribute 'axis' is given twice"),
        (one("y = Concat(x, z)"), 2, "attribute 'axis' has no default"),
        (one('y = Softmax(x; axis="last")'), 2, "attribute 'axis' of Softmax asks for an int"),
        (one("y = Softmax(x; axis=rank(q))"), 2, "'q' is not defined"),
        (one("y = Relu(y)"), 2, "'y' is read before it is defined"),
        (one("y = Relu(z)\nz = Relu(x)"), 3, "'z' is read before it is defined"),
        (one("y = Relu(x)\ny = Neg(x)"), 3, "'y' is defined twice"),
        (one("y = Relu(x)\nz = Relu(q)"), 3, "parts that share no tensor"),
        (one("y = Relu(x)", "y = Relu(q)"), 4, "'q' is not defined"),
        (one("y = Relu(x)", "z = Relu(x)"), 1, "the replacement defines no output of the pattern"),
        (one("y = Relu(x)", "y = Relu(x)\nz = Neg(x)"), 1, "'z' of the replacement is never used"),
        (one("y = Relu(x)", "x = Relu(x)"), 4, "is read before it is defined"),
        (one("y = Relu(x)", "y = Neg(y)"), 4, "'y' is read before it is defined"),
        (one("y = Relu(x)", "y = Relu(x)\ny = Neg(x)"), 5, "'y' is defined twice in the replacement"),
        (one("y = Relu(x)", "y = Softmax(x; @a)"), 4, "@a is not bound by the pattern"),
        (one("y = Conv(x, w; @a)", "y = MatMul(x, w; @a)"), 4, "which MatMul has not"),
        (one("y = Relu(x)", "y = Concat(x)"), 4, "attribute 'axis' has no default; give it a value"),
        (one("y* = Relu(x*)", "y* = Neg(x*)"), 1, "nothing holds the family together"),
        (one("y = MatMul(x, w*)"), 2, "MatMul does not take a family"),
        (one("y* = MatMul(x, w*)", "w = Concat(w*; axis=0)\ny = MatMul(x, w)"), 1, "defines no output"),
        (one("y = Relu(x)", where="rank(q) == 2"), 6, "'q' is not defined"),
        (one("y = Relu(x)", where="rank(x*) == 2"), 6, "'x*' is not defined; 'x' is another name"),
        (one("y = Relu(x)", where="rank(x)"), 6, "a condition asks for a truth value"),
        (one("y = Relu(x)", where="rnk(x) == 2"), 6, "unknown function 'rnk'"),
        (one("y = Relu(x)", where="rank(x, 1) == 2"), 6, "function 'rank' takes 1 arguments, got 2"),
        (one("y = Relu(x)", where='rank(x) == "two"'), 6, "cannot compare an int with a string"),
        (one("y = Relu(x)", where="1 < rank(x) < 3"), 6, "comparisons do not chain"),
        (one("y = Relu(x)", where="num(x) == 2"), 6, "'num' needs a starred argument"),
        (one("y = Relu(x)", where="rank(x) == (2"), 6, "expected ')' in the expression"),
        (one("Y = Relu(x)"), 2, "names of tensors are lower case"),
        (one("y = x"), 2, "a pattern has operators only"),
        ("substitution s\n  y = Relu(x)\n", 3, "expected a line of the pattern or '=>'"),
        ("substitution s\n=>\n  y = Relu(x)\n", 1, "the pattern is empty"),
        ("substitution Bad_Name\n  y = Relu(x)\n=>\n  y = x\n", 1, "verb_object in lower case"),
        (one("y = Relu(x)") + "\n" + one("y = Neg(x)"), 5, "there is another substitution of this name"),
    ],
)
def test_malformed_substitutions_are_refused_by_name_line_and_reason(
    text: str, line: int, reason: str
) -> None:
    error = refusal(text)
    assert error.name == ("Bad_Name" if "Bad_Name" in text else "s")
    assert error.line == line
    assert reason in error.reason
    assert "s" in str(error)
    assert f"line {line}" in str(error)


def test_text_that_is_no_substitution_is_refused() -> None:
    error = refusal("substitutoin s\n")
    assert error.line == 1
    assert "expected 'substitution <name>'" in error.reason


def test_deep_nesting_is_refused_rather_than_exhausting_the_stack() -> None:
    nested = "(" * 5000 + "rank(x)" + ")" * 5000
    assert "nested too deeply" in refusal(one("y = Relu(x)", where=nested + " == 2")).reason


@pytest.mark.parametrize(
    "condition",
    [
        "+".join(["1"] * 50_000) + " == 1",
        "shape(x)" + "[0]" * 50_000 + " == 1",
        "[" + ", ".join(["1"] * 50_000) + "] == shape(x)",
        "let a0 = 1\n" + "\n".join(f"let a{i + 1} = a{i} + a{i}" for i in range(60)) + "\na60 == 1",
        "let a0 = 1\n" + "\n".join(f"let a{i + 1} = {'-' * 90}a{i}" for i in range(3000)) + "\na3000 == 1",
    ],
    ids=["sum", "indices", "list", "doubling lets", "nested lets"],
)
def test_long_expressions_are_refused_rather_than_exhausting_the_stack(condition: str) -> None:
    assert "more than 500 operands" in refusal(one("y = Relu(x)", where=condition)).reason


@pytest.mark.parametrize("number", ["1e999", "99999999999999999999", "0x10", "1abc", "1e"])
def test_what_is_no_number_of_64_bits_is_refused(number: str) -> None:
    assert f"'{number}' is not a number" in refusal(one("y = Relu(x)", where=f"rank(x) == {number}")).reason


def test_an_output_may_become_another_tensor_of_the_pattern() -> None:
    # Nothing else of the replacement is there to look at.
    library = _C.Library("substitution s\n  y = Mul(a, b)\n  z = Mul(a, b)\n=>\n  z = y\n")
    graph = _C.parse_graph("graph (a: f32[2]) { y = Mul(a, a) z = Mul(a, a) return y, z }")
    assert library.apply(graph, "s", 0).num_operators == 1
