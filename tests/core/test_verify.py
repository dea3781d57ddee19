"""The substitution checker: it must reject known wrong ones and accept their correct forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchrlopt import _C, _tools

TEXTS = Path(__file__).parent.parent / "substitutions"
WRONG = _C.Library((TEXTS / "known_wrong.txt").read_text())
RIGHT = _C.Library((TEXTS / "known_right.txt").read_text())


def verify(text: str, **options: int) -> dict[str, Any]:
    library = _C.Library(text)
    return _tools.verify(library, library.names[0], **options)


@pytest.mark.parametrize("name", WRONG.names)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_known_wrong_substitutions_are_rejected_with_a_counter_example(name: str, seed: int) -> None:
    result = _tools.verify(WRONG, name, seed=seed)
    assert not result["ok"]
    assert "different results" in result["reason"]
    example = result["counter_example"]
    before, after = example.split("after:\n")
    graph = _C.parse_graph(before.removeprefix("before:\n"))
    assert len(WRONG.matches(graph, name)) > 0, "the counter-example is a graph in which it fires"
    assert after.startswith("graph (")


@pytest.mark.parametrize("name", RIGHT.names)
def test_their_right_forms_are_accepted(name: str) -> None:
    result = _tools.verify(RIGHT, name)
    assert result["ok"], result["reason"]
    assert result["num_bindings"] == 200
    assert result["num_contexts"] >= 4


def test_all_contexts_are_tried_where_they_exist() -> None:
    text = (
        "substitution s\nt = Sub(x, z)\nu = Sub(t, z)\ny = Neg(u)\n=>\nv = Add(z, z)\ny = Sub(v, x)\nwhere\n"
    )
    result = verify(text + "same_shape(x, z)")
    assert result["ok"], result["reason"]
    assert result["contexts"] == [
        "plain",
        "second consumer",
        "graph output",
        "same tensor",
        "shared input",
        "overlap",
    ]


ASSOCIATE = "substitution s\nt = MatMul(x, v)\ny = MatMul(t, w)\n=>\ns = MatMul(v, w)\ny = MatMul(x, s)\n"


def test_linear_algebra_is_decided_over_the_prime_field() -> None:
    result = verify(ASSOCIATE + "where\nrank(v) == 2, rank(w) == 2")
    assert result["ok"], result["reason"]
    assert result["exact_field"]
    assert result["max_error"] == 0


def test_a_missing_guard_on_ranks_is_found() -> None:
    """A vector in the middle is contracted from the other side."""
    result = verify(ASSOCIATE)
    assert not result["ok"]
    assert "different results" in result["reason"]


def test_true_functions_are_decided_in_float64() -> None:
    result = verify("substitution s\nt = Exp(x)\nu = Exp(z)\ny = Mul(t, u)\n=>\ns = Add(x, z)\ny = Exp(s)\n")
    assert result["ok"]
    assert not result["exact_field"]
    assert 0 < result["max_error"] < 1e-9


def test_a_wrong_function_is_rejected() -> None:
    result = verify("substitution s\ny = Gelu(x)\n=>\ns = Sigmoid(x)\ny = Mul(x, s)\n")
    assert not result["ok"]
    assert "before" in result["reason"]


def test_exact_means_bit_for_bit() -> None:
    text = "substitution s{}\nt = Add(x, z)\ny = Sub(t, z)\n=>\ny = Identity(x)\nwhere\nsame_shape(x, z)\n"
    assert verify(text.format(""))["ok"]
    strict = verify(text.format(" exact"))
    assert not strict["ok"]
    assert "marked exact" in strict["reason"]


def test_integers_are_tried_where_conditions_allow_them() -> None:
    text = "substitution s\ny = Div(x, z)\n=>\nr = Reciprocal(z)\ny = Mul(x, r)\nwhere\n{}"
    assert verify(text.format("is_float(x)"))["ok"]
    halves = "substitution s\nt = Div(x, 2)\ny = Mul(t, 2)\n=>\ny = Identity(x)\n"
    assert not verify(halves)["ok"]
    assert verify(halves + "where\nis_float(x)")["ok"]


def test_families_are_tried_with_unequal_widths() -> None:
    wrong = """
substitution s
  y* = MatMul(x, w*)
=>
  w = Concat(w*; axis=-1)
  y = MatMul(x, w)
  y* = Split(y; axis=-1, sizes=repeat(dim(w, -1) / num(w*), num(w*)))
where
  rank(w*) == 2
"""
    result = verify(wrong)
    assert result["num_refused"] > 50, "unequal widths do not fit an equal split"
    right = wrong.replace("repeat(dim(w, -1) / num(w*), num(w*))", "dim(w*, -1)")
    accepted = verify(right)
    assert accepted["ok"]
    assert accepted["num_refused"] == 0


def test_a_substitution_that_never_fires_is_not_accepted() -> None:
    never = verify("substitution s\ny = Relu(x)\n=>\ny = Relu(x)\nwhere\nrank(x) == 3 && rank(x) == 4\n")
    assert not never["ok"]
    assert "0 distinct instances" in never["reason"]
    refused = verify("substitution s\ny = Relu(x)\n=>\nt = Unsqueeze(x; axes=[0])\ny = Relu(t)\n")
    assert not refused["ok"]
    assert "would change its type" in refused["reason"]


def test_the_same_seed_gives_the_same_result() -> None:
    name = RIGHT.names[0]
    assert _tools.verify(RIGHT, name, bindings=20, seed=7) == _tools.verify(RIGHT, name, bindings=20, seed=7)
