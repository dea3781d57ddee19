"""The search with a network that rates candidates: training/search/."""

from __future__ import annotations

import pytest

from tests.agent.agent_cases import COST, GRAPHS, LIBRARY, make_observation
from tests.core.test_search import HILL
from tests.core.test_search import LIBRARY as HILLS
from torchrlopt import _C
from torchrlopt.options import SearchOptions
from torchrlopt.plan.search import ClassicSearcher, Plan, replay
from training.networks.candidate_controller import new_controller
from training.search.guided_searcher import BeamSearcher, CostGuide, random_control


def run(graph: _C.Graph, library: _C.Library = LIBRARY, **changes: object) -> Plan:
    given = SearchOptions(**{"budget_ms": 60_000.0, "budget_steps": 40, **changes})
    plan = BeamSearcher(new_controller(library).eval()).search(graph, library, COST, given)
    replay(graph, library, plan).check()
    return plan


def test_a_longer_hill_is_crossed_by_the_networks() -> None:
    names = "abcdefg"
    lines = [f"  {name} = Relu({before})" for name, before in zip(names, "x" + names, strict=False)]
    cancel = "\n".join(["substitution cancel_seven", *lines, "=>", "  g = Identity(x)", "proof tested"])
    text = HILLS[: HILLS.index("substitution cancel_three")] + cancel
    plan = run(_C.parse_graph(HILL), _C.Library(text), budget_steps=100)
    assert [name for name, _ in plan.steps] == ["square_relu"] * 6 + ["cancel_seven"]
    assert plan.found_by == "networks"
    costs = [cost_ms for _, cost_ms in plan.curve]
    assert costs[0] == plan.cost_before_ms
    assert costs[-1] == pytest.approx(plan.cost_after_ms)
    assert costs == sorted(costs, reverse=True)
    seconds = [at for at, _ in plan.curve]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("graph", GRAPHS)
def test_never_worse_than_greedy(graph: _C.Graph) -> None:
    given = SearchOptions(searcher="greedy", budget_ms=60_000.0, budget_steps=40)
    plan = run(graph)
    assert plan.cost_after_ms <= ClassicSearcher().search(graph, LIBRARY, COST, given).cost_after_ms
    assert plan.expansions > 1


def test_a_beam_that_meets_known_graphs_goes_on_with_others() -> None:
    # Equal branches: most steps lead to graphs that cost the same as one seen before.
    lines = [f"a{i} = Relu(x) b{i} = Relu(a{i}) c{i} = Sigmoid(b{i})" for i in range(6)]
    outputs = ", ".join(f"c{i}" for i in range(6))
    graph = _C.parse_graph(f"graph (x: f32[64,64]) {{ {' '.join(lines)} return {outputs} }}")
    plan = run(graph, budget_steps=200)
    assert plan.is_exhausted or plan.expansions >= 150


def test_without_a_network_the_candidate_that_saves_most_is_likeliest() -> None:
    states = make_observation()
    likelihoods, values = CostGuide(len(LIBRARY)).rate(states)
    assert values.tolist() == [0.0] * states.num_episodes
    for episode in range(states.num_episodes):
        mine = states.candidate_episode == episode
        assert likelihoods[mine].exp().sum().item() == pytest.approx(1.0, rel=1e-5)
        deltas = states.column("candidate", "cost_delta")[mine]
        assert deltas[likelihoods[mine].argmax()] == deltas.min()


def test_the_control_is_random_and_has_the_same_sizes() -> None:
    given = new_controller(LIBRARY, seed=1)
    one, again, other = (random_control(given, LIBRARY, seed).state_dict() for seed in (0, 0, 1))
    assert {name: tensor.shape for name, tensor in one.items()} == {
        name: tensor.shape for name, tensor in given.state_dict().items()
    }
    last = "scorer.score.3.weight"
    assert one[last].equal(again[last])
    assert not one[last].equal(other[last])
