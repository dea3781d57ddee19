"""On a graph that almost matches, a substitution is refused or still correct."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.rules.comparing import compare
from tests.substitutions.near_misses import near_misses
from torchrlopt import _C, _tools
from torchrlopt.errors import SubstitutionError
from torchrlopt.substitutions import load_library

LIBRARY = load_library()
NUM_INSTANCES = 4


@pytest.mark.parametrize("name", LIBRARY.names)
def test_refused_or_right(name: str) -> None:
    draw = random.Random(name)
    for number, drawn in enumerate(_tools.instances(LIBRARY, name, NUM_INSTANCES, seed=3)):
        for what, graph in near_misses(_C.parse_graph(drawn["graph"]), draw):
            try:
                after = LIBRARY.apply(graph, name, 0)
            except SubstitutionError:
                continue
            for numbers in ("signed", "positive"):
                found = compare(graph, after, number, numbers)
                assert not found.difference, f"{what}: {found.difference}\n{graph.text()}"


def test_a_number_is_not_close_to_infinity() -> None:
    lines = ["t = Pad(x; pads=[0,0,1,1,0,0,1,1]{})", " = MaxPool(t; kernel_shape=[3,3])"]
    for value, fires in {", value=-inf": True, "": False, ", value=3.0": False, ", value=inf": False}.items():
        text = f"graph (x: f32[1,3,8,8]) {{\n  {lines[0].format(value)}\n  y{lines[1]}\n  return y\n}}\n"
        names = {each["name"] for each in _C.MatchSet(_C.parse_graph(text), LIBRARY).matches(LIBRARY)}
        assert ("fold_pad_into_max_pool" in names) == fires, value
