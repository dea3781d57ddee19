"""Plans that differ in an assumption about the machine: torchrlopt/plan/alternatives.py."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from torchrlopt import _C, _tools
from torchrlopt.machine.cost import MachineProfile, device_model
from torchrlopt.options import SearchOptions
from torchrlopt.plan import search
from torchrlopt.plan.alternatives import Alternative, Belief, alternatives, beliefs, worth_measuring
from torchrlopt.plan.search import Plan
from torchrlopt.substitutions import load_library
from training.graphs.curriculum import sample_graph

LIBRARY = load_library()
PROFILE = MachineProfile("eager", "cpu")
COST = PROFILE.cost_model({})
GREEDY = SearchOptions(searcher="greedy", budget_ms=10_000)


def found_for(
    key: int, count: int = 12, options: SearchOptions = GREEDY
) -> tuple[_C.Graph, Plan, list[Alternative]]:
    graph = sample_graph(key).graph
    plan = search.search(graph, LIBRARY, COST, options)
    found = alternatives(graph, LIBRARY, PROFILE, {}, options, plan)
    return graph, plan, list(itertools.islice(found, count))


def values_of(graph: _C.Graph, original: _C.Graph, rng: np.random.Generator) -> list[np.ndarray]:
    leaves = [original.node(leaf) for leaf in original.inputs]
    arrays = {leaf["name"]: 0.5 + rng.random(leaf["types"][0][1]) for leaf in leaves}
    return list(_tools.evaluate(graph, arrays))


@pytest.mark.parametrize("key", [0, 3, 5])
def test_alternatives_are_other_graphs_that_compute_the_same(key: int) -> None:
    graph, plan, found = found_for(key)
    assert len(found) >= 3
    graphs = [search.replay(graph, LIBRARY, plan), *(each.graph for each in found)]
    assert len({each.hash() for each in graphs}) == len(graphs)
    expected = values_of(graph, graph, np.random.default_rng(0))
    for each in found:
        assert search.replay(graph, LIBRARY, each.plan).hash() == each.graph.hash()
        assert each.plan.cost_after_ms == pytest.approx(COST.total(each.graph)["time_us"] / 1000)
        for mine, theirs in zip(
            values_of(each.graph, graph, np.random.default_rng(0)), expected, strict=True
        ):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-9)


def test_strict_numerics_hold_for_alternatives_too() -> None:
    _, _, found = found_for(5, options=dataclasses.replace(GREEDY, numerics="strict"))
    assert all(LIBRARY.is_exact(name) for each in found for name, _ in each.plan.steps)


def test_a_graph_without_matches_has_no_alternatives() -> None:
    builder = _C.GraphBuilder()
    x = (builder.add_input("x", ("f32", [4])), 0)
    builder.set_outputs([(builder.add_node("Tanh", [x], {}), 0)], ["y"])
    graph = builder.finish()
    plan = search.search(graph, LIBRARY, COST, GREEDY)
    assert list(alternatives(graph, LIBRARY, PROFILE, {}, GREEDY, plan)) == []


def test_beliefs_change_the_machine_and_nothing_else() -> None:
    before = PROFILE.device_model()
    after = Belief(name="launch_us", factor=4.0).device_model(PROFILE)
    assert after.launch_us == 4 * before.launch_us
    assert after.flops_per_us == before.flops_per_us
    otherwise = Belief(name="fuses_epilogues")
    assert otherwise.device_model(PROFILE).fuses_epilogues != before.fuses_epilogues
    assert Belief(without="a").device_model(PROFILE).launch_us == before.launch_us
    found = map(str, (Belief(without="a"), Belief(name="launch_us", factor=16.0), otherwise))
    assert list(found) == ["without a", "launch_us x 16", "fuses_epilogues otherwise"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_takes_no_time_is_not_believed_otherwise(device: str) -> None:
    model = device_model("eager", device)
    found = beliefs(["a", "b"], model)
    assert len(set(map(str, found))) == len(found)
    names = {belief.name for belief in found if belief.factor != 1}
    assert "launch_us" in names
    assert ({"step_us", "group_us", "padding_us", "cut_us"} <= names) == (device == "cuda")
    assert all(getattr(model, name) != 0 for name in names)


def test_those_worth_measuring_are_the_best_that_differ() -> None:
    graph, plan, found = found_for(0, count=40)
    kept = search.replay(graph, LIBRARY, plan)
    chosen = worth_measuring(found, kept, COST, 5)
    assert 2 <= len(chosen) <= 5
    costs = [each.plan.cost_after_ms for each in chosen]
    assert costs == sorted(costs)
    # The same graphs once more differ by nothing from what is there already.
    assert worth_measuring(chosen, kept, COST, 5) == chosen
    assert worth_measuring([chosen[0], chosen[0]], kept, COST, 5) == chosen[:1]
    assert worth_measuring(chosen[:1], chosen[0].graph, COST, 5) == []
