"""Invalid indices at every entry point of the core: a clear error, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from torchrlopt import _C
from torchrlopt.errors import EnvError, ModelFormatError

LIBRARY = _C.Library("substitution drop_relu\n  y = Relu(x)\n  z = Relu(y)\n=>\n  z = Relu(x)\n")
OTHER = _C.Library(
    "substitution drop_abs\n  y = Abs(x)\n  z = Abs(y)\n=>\n  z = Abs(x)\n"
    "substitution drop_sign\n  y = Sign(x)\n  z = Sign(y)\n=>\n  z = Sign(x)\n"
)
GRAPH = _C.parse_graph("graph (x: f32[2]) { y = Relu(x) z = Relu(y) return z }")
COST = _C.CostModel()


@pytest.mark.parametrize(
    ("substitution", "location", "message"),
    [
        (7, 0, "there are 1 substitutions, no number 7"),
        (-1, 0, "no number -1"),
        (0, 5, "substitution 0 has 1 matches, no location 5"),
        (0, -1, "no location -1"),
    ],
)
def test_a_state_steps_only_where_there_is_a_match(substitution: int, location: int, message: str) -> None:
    state = _C.RewriteState(GRAPH, LIBRARY, COST)
    before = state.hash
    with pytest.raises(IndexError, match=message):
        state.step(substitution, location)
    assert state.hash == before
    assert state.step(0, 0)


VALUES = [
    ((99, 0), "the graph has no node 99"),
    ((1, 3), r"node 1 \(Relu\) has 1 outputs, no output 3"),
    ((1, -1), "no output -1"),
    ((-5, 0), "an omitted input is no value"),
    (None, "an omitted input is no value"),
]


@pytest.mark.parametrize(("value", "message"), VALUES)
def test_a_graph_has_types_of_its_values_only(value: tuple[int, int] | None, message: str) -> None:
    with pytest.raises(IndexError, match=message):
        GRAPH.type(value)


@pytest.mark.parametrize(
    "door", [GRAPH.node, *(lambda id, f=f: f(GRAPH, id) for f in (COST.node, COST.keys))]
)
@pytest.mark.parametrize("id", [99, -1])
def test_a_graph_has_nodes_of_its_own_only(door: Callable[[int], object], id: int) -> None:
    with pytest.raises(IndexError, match=f"the graph has no node {id}"):
        door(id)


def builder() -> _C.GraphBuilder:
    """An input x and a Relu of it."""
    made = _C.GraphBuilder()
    made.add_node("Relu", [(made.add_input("x", ("f32", [2])), 0)], {})
    return made


@pytest.mark.parametrize(("value", "message"), VALUES)
def test_a_builder_reads_what_it_has(value: tuple[int, int] | None, message: str) -> None:
    made = builder()
    with pytest.raises(IndexError, match=message):
        made.type(value)
    if value is not None and value[0] >= 0:  # others are omitted inputs
        with pytest.raises(IndexError, match=message):
            made.add_node("Relu", [value], {})
        with pytest.raises(IndexError, match=message):
            made.add_leaf("Opaque", [value], {"op": "x"}, [("f32", [1])])
    made.set_outputs([(1, 0)], ["y"])
    with pytest.raises(IndexError, match=message):
        made.set_outputs([(0, 0), value], ["y", "z"])
    graph = made.finish()
    graph.check()
    assert graph.outputs == [(1, 0)]


def test_a_builder_refuses_leaves_that_are_none() -> None:
    made = builder()
    with pytest.raises(ModelFormatError, match="0 types for its outputs"):
        made.add_leaf("Constant", [], {}, [])
    with pytest.raises(ModelFormatError, match="0 types for its outputs"):
        made.add_leaf("Opaque", [], {"op": "x"}, [])
    with pytest.raises(ModelFormatError, match="use add_input"):
        made.add_leaf("Input", [], {}, [("f32", [1])])


def test_a_builder_is_empty_after_its_graph() -> None:
    made = builder()
    made.set_outputs([(1, 0)], ["y"])
    made.finish()
    assert made.add_input("z", ("f32", [1])) == 0
    made.set_outputs([(0, 0)], ["z"])
    assert made.finish().text() == "graph (z: f32[1]) {\n  return z\n}\n"


def test_matches_belong_to_their_library() -> None:
    matches = _C.MatchSet(GRAPH, LIBRARY)
    with pytest.raises(ModelFormatError, match="another library"):
        matches.matches(OTHER)
    with pytest.raises(ModelFormatError, match="another library"):
        matches.after(GRAPH, OTHER)


@pytest.mark.parametrize(
    "call",
    [
        lambda env: env.find(0, 0, 0),
        lambda env: env.graph(0),
        lambda env: env.hash(0),
        lambda env: env.masks(np.zeros((1, 2), bool), np.zeros((1, 1, 200), bool)),
        lambda env: env.sizes(),
        lambda env: env.step([0]),
        lambda env: env.copy(0, 0),
    ],
)
def test_episodes_have_to_be_reset_first(call: Callable[[_C.VecRewriteEnv], object]) -> None:
    env = _C.VecRewriteEnv([GRAPH], LIBRARY, COST)
    with pytest.raises(EnvError, match="reset has to come before"):
        call(env)


@pytest.mark.parametrize("call", [_C.VecRewriteEnv.graph, _C.VecRewriteEnv.hash, _C.VecRewriteEnv.steps])
@pytest.mark.parametrize("index", [1, -1])
def test_an_environment_has_its_own_episodes_only(
    call: Callable[[_C.VecRewriteEnv, int], object], index: int
) -> None:
    env = _C.VecRewriteEnv([GRAPH], LIBRARY, COST)
    env.reset([0], [{}])
    with pytest.raises(EnvError, match=f"no episode {index} of 1"):
        call(env, index)
