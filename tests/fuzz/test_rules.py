"""Rule-directed graphs: planted patterns fire, and wrong substitutions are found and reduced."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz.kept import keep, parse_case
from tests.fuzz.outcome import Total
from tests.fuzz.rules import fuzzer as rules
from tests.fuzz.rules.comparing import compare
from tests.fuzz.rules.fuzzer import PLANTS, RulesFuzzer
from tests.fuzz.rules.walking import shrink, walk
from tests.substitutions.graphs import graph_of
from torchrlopt import _C

WRONG = _C.Library(
    (Path(__file__).parents[1] / "substitutions" / "known_wrong.txt").read_text(encoding="utf-8")
)


def test_every_substitution_is_planted_and_nearly_all_fire_at_once() -> None:
    fuzzer = RulesFuzzer(3)
    number = -(-len(fuzzer.library) // PLANTS)
    total = Total()
    for index in range(0, 8 * number, 8):  # none of them is compared bit for bit
        total.add(index, fuzzer.run(index))
    assert total.kinds == Counter(right=number)
    assert total.counts["began with what was planted"] >= 0.9 * number
    assert total.counts["steps"] >= 10 * number


@pytest.mark.parametrize("name", WRONG.names)
def test_a_wrong_substitution_is_found_and_made_small(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = _C.Library(WRONG.text(name))
    fuzzer = RulesFuzzer(0, library)
    found = next(each for index in range(40) if (each := fuzzer.run(index)).kind == "wrong")
    path = keep(found.case, found.reason, tmp_path)
    case = parse_case(path.read_text(encoding="utf-8"))
    assert (case.what, case.fields["steps"].split(" ")[0]) == ("rules", name)
    pattern = library.text(name).partition("=>")[0].count("\n  ")
    assert _C.parse_graph(case.body).num_operators <= pattern + 2
    monkeypatch.setattr(rules, "load_library", lambda **_: library)
    assert rules.replay(case) != ""


def test_a_difference_of_rounding_is_none_and_one_of_numbers_is() -> None:
    inputs = "a: f32[64], b: f32[64], c: f32[64]"
    three = graph_of(inputs, "t = Mul(a, b); y = Mul(t, c)")
    other = graph_of(inputs, "t = Mul(b, c); y = Mul(a, t)")
    wrong = graph_of(inputs, "t = Mul(b, c); y = Sub(a, t)")
    assert compare(three, other, 0, "signed").difference == ""
    assert "before" in compare(three, wrong, 0, "signed").difference
    assert compare(three, other, 0, "special").difference != "", "a product in another order has other bits"


def test_shrinking_keeps_the_difference_only() -> None:
    library = _C.Library("substitution wrong\n  t = Neg(x)\n  y = Neg(t)\n=>\n  y = Neg(x)\n")
    graph = graph_of(
        "x: f32[4], z: f32[4]", "r = Relu(x); a = Neg(r); b = Neg(a); y = Tanh(b); w = Exp(z)", "y, w"
    )
    taken = walk(graph, library, [], random.Random(0), 1)
    small, steps = shrink(taken, library, lambda a, b: compare(a, b, 0, "signed").difference)
    assert steps == [("wrong", 0)]
    assert [small.node(i)["op"] for i in small.topological_order()] == ["Input", "Neg", "Neg"]
