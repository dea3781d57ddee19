"""Searching part by part: equal parts are searched once, and results for a part apply to the whole graph."""

from __future__ import annotations

import dataclasses
import random

import pytest

from torchrlopt import _C
from torchrlopt.options import MAX_BUDGET_MS, SearchOptions
from torchrlopt.plan import planning
from torchrlopt.substitutions import load_library
from training.graphs.curriculum import stacked_graph

LIBRARY, COST = load_library(), _C.CostModel()


def search(graph: _C.Graph, searcher: str, steps: int) -> dict[str, object]:
    return _C.search(graph, LIBRARY, COST, searcher=searcher, budget_ms=600e3, budget_steps=steps)


def sequence_stack(operators: int, repeats: int) -> _C.Graph:
    """The first stack of sequence blocks."""
    for number in range(100):
        sample = stacked_graph(3, number, operators=operators, repeats=repeats)
        if "length" in sample.parameters:
            return sample.graph
    raise AssertionError("no such graph")


def test_parts_find_more_in_a_large_graph_than_local_search_of_the_whole() -> None:
    graph = sequence_stack(400, repeats=6)
    found = {name: search(graph, name, 6000) for name in ("chains", "iterated", "local")}
    costs = {name: each["cost_after_us"] for name, each in found.items()}
    assert costs["local"] < 0.999 * costs["iterated"]
    assert costs["iterated"] <= costs["chains"]
    assert _C.replay(graph, LIBRARY, found["local"]["steps"]).hash() == found["local"]["graph"].hash()
    found["local"]["graph"].check()


@pytest.mark.parametrize("number", range(8))
def test_plans_of_parts_lead_where_the_search_says(number: int) -> None:
    graph = stacked_graph(4, number, operators=100, repeats=1 + number % 2).graph
    chains = search(graph, "chains", 100_000)
    for steps in (1, 300, 1500):
        found = _C.search(
            graph, LIBRARY, COST, searcher="local", budget_ms=600e3, budget_steps=steps, first=chains["steps"]
        )
        assert found["cost_after_us"] <= chains["cost_after_us"] * (1 + 1e-9)
        assert _C.replay(graph, LIBRARY, found["steps"]).hash() == found["graph"].hash()


def test_matches_and_order_follow_a_plan_through_a_large_graph() -> None:
    # Merging siblings moves what reads them in front of what they read: some nodes change places.
    graph = sequence_stack(250, repeats=2)
    generator = random.Random(0)
    matches = _C.MatchSet(graph, LIBRARY)
    state = _C.RewriteState(graph, LIBRARY, COST)
    for _ in range(150):
        candidates = state.candidates()
        chosen = candidates[generator.randrange(len(candidates))]
        assert state.step(chosen["substitution"], chosen["location"])
        after = state.graph
        matches = matches.after(after, LIBRARY)
        for node in after.topological_order():
            for value in after.node(node)["inputs"]:
                assert value is None or matches.position(value[0]) < matches.position(node)
    assert matches.matches(LIBRARY) == _C.MatchSet(state.graph, LIBRARY).matches(LIBRARY)
    assert places_of(state) == places_of(_C.RewriteState(state.graph, LIBRARY, COST))


def places_of(state: _C.RewriteState) -> list[tuple[int, int]]:
    return [(each["substitution"], each["location"]) for each in state.candidates()]


SURVIVOR = """graph (x: f32[3,4], %w: f32[4,8]) {
  y = MatMul(x, %w)
  a, b = Split(y; axis=-1, sizes=[4,4])
  c = Relu(a)
  d = Exp(c)
  e = Relu(d)
  m = MatMul(e, %w)
  return y, m, b
}"""
SPLIT_AND_SHARE = """substitution split_product
  y = MatMul(x, w)
  a, b = Split(y; axis=-1, sizes=[4,4])
=>
  u, v = Split(w; axis=-1, sizes=[4,4])
  a = MatMul(x, u)
  b = MatMul(x, v)

substitution share_weight
  y* = MatMul(x*, w)
=>
  z = Concat(x*; axis=0)
  v = MatMul(z, w)
  y* = Split(v; axis=0, sizes=dim(x*, 0))
"""


def test_what_depended_on_a_node_that_lives_on_may_be_merged_with_it() -> None:
    # The first product is an output: it lives on, and the second one does not depend on it any more.
    library = _C.Library(SPLIT_AND_SHARE)
    graph = _C.parse_graph(SURVIVOR)
    state = _C.RewriteState(graph, library, COST)
    assert places_of(state) == [(0, 0)]
    assert state.step(0, 0)
    assert places_of(state) == places_of(_C.RewriteState(state.graph, library, COST)) == [(1, 0)]
    both = _C.replay(graph, library, [("split_product", 0), ("share_weight", 0)])
    both.check()


@pytest.mark.parametrize("steps", [1, 5, 37, 120, 451, 900])
def test_the_number_of_expansions_is_kept(steps: int) -> None:
    graph = stacked_graph(8, 0, operators=120).graph
    chains = search(graph, "chains", 100_000)
    for first in ([], chains["steps"]):
        found = _C.search(
            graph, LIBRARY, COST, searcher="local", budget_ms=600e3, budget_steps=steps, first=first
        )
        assert found["expansions"] <= steps + 1
        assert not found["exhausted"]


ODD = """graph (x: f32[N,4], %w: f32[4,4]) {{
{lines}
  return x, a0, a{last}, a{last}
}}"""


def odd_graph() -> _C.Graph:
    # An input and a value that are outputs, one of them twice, a symbolic dim, and values that nobody reads.
    lines = ["  a0 = MatMul(x, %w)"]
    for i in range(1, 120):
        lines += [f"  b{i} = Relu(a{i - 1})", f"  c{i} = Relu(b{i})"]
        lines += [
            f"  d{i}, e{i} = Split(c{i}; axis=-1, sizes=[2,2])",
            f"  a{i} = Concat(d{i}, d{i}; axis=-1)",
        ]
    return _C.parse_graph(ODD.format(lines="\n".join(lines), last=119))


def test_parts_of_odd_graphs() -> None:
    graph = odd_graph()
    found = search(graph, "local", 3000)
    assert found["cost_after_us"] < found["cost_before_us"]
    assert sum(found["graph"].node(i)["op"] == "Relu" for i in found["graph"].topological_order()) <= 119
    assert _C.replay(graph, LIBRARY, found["steps"]).hash() == found["graph"].hash()


@pytest.mark.parametrize(("operators", "budget_ms"), [(100, 300.0), (3000, 600.0)])
def test_large_graphs_get_more_time(operators: int, budget_ms: float) -> None:
    graph = stacked_graph(7, 0, operators=operators, repeats=20).graph
    given = SearchOptions(budget_ms=300.0)
    assert planning.with_budget_for(graph, given).budget_ms == pytest.approx(budget_ms, rel=0.1)
    most = dataclasses.replace(given, budget_ms=MAX_BUDGET_MS)
    assert planning.with_budget_for(graph, most) == most
    assert planning.with_budget_for(graph, SearchOptions(budget_ms=0.0)).budget_ms == 0


def test_strict_searches_take_exact_steps_only() -> None:
    graph = odd_graph()
    found = _C.search(
        graph, LIBRARY, COST, searcher="local", budget_ms=600e3, budget_steps=1500, exact_only=True
    )
    assert found["steps"]
    assert all(LIBRARY.is_exact(name) for name, _ in found["steps"])
