"""Controls of the agent, and comparisons of two searchers: baselines/shared/controls.py, paired.py."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("scipy", reason="intervals need scipy")

from baselines.shared.controls import NAMES, CostGuide, control, shuffled_control
from baselines.shared.paired import compared, holm
from tests.agent.agent_cases import COST, GRAPHS, LIBRARY, make_observation
from torchrlopt.agent.checkpoint import Agent, new_controller
from torchrlopt.agent.networks.candidate_controller import CandidateController
from torchrlopt.options import SearchOptions

AGENT = Agent(new_controller(LIBRARY, seed=3).eval(), {})


def test_without_a_network_the_candidate_that_saves_most_is_likeliest() -> None:
    states = make_observation()
    likelihoods, values = CostGuide(len(LIBRARY)).rate(states)
    assert values.tolist() == [0.0] * states.num_episodes
    for episode in range(states.num_episodes):
        mine = states.candidate_episode == episode
        assert likelihoods[mine].exp().sum().item() == pytest.approx(1.0, rel=1e-5)
        deltas = states.column("candidate", "cost_delta")[mine]
        assert deltas[likelihoods[mine].argmax()] == deltas.min()


def test_shuffled_weights_are_the_same_numbers_elsewhere() -> None:
    one, again, other = (shuffled_control(AGENT, LIBRARY, seed).controller for seed in (0, 0, 1))
    given = AGENT.controller
    assert isinstance(given, CandidateController)
    assert isinstance(one, CandidateController)
    assert isinstance(again, CandidateController)
    assert isinstance(other, CandidateController)
    name = "encoder.rounds.0.update.weight"
    before, after = given.state_dict()[name], one.state_dict()[name]
    assert torch.equal(before.flatten().sort().values, after.flatten().sort().values)
    assert not torch.equal(before, after)
    assert torch.equal(after, again.state_dict()[name])
    assert not torch.equal(after, other.state_dict()[name])


@pytest.mark.parametrize("name", NAMES)
def test_a_control_plans_under_its_name(name: str) -> None:
    given = SearchOptions(searcher="greedy", budget_ms=60_000.0, budget_steps=40)
    plan = control(name, AGENT, LIBRARY, 0).search(GRAPHS[0], LIBRARY, COST, given)
    assert plan.searcher == name
    assert plan.cost_after_ms < plan.cost_before_ms


def test_graphs_of_one_structure_count_once() -> None:
    mine = {"a": 1.0, "b": 4.0, "c": 3.0}
    other = {"a": 2.0, "b": 2.0, "c": 3.0}
    apart = compared(mine, other, {"a": "a", "b": "b", "c": "c"})
    assert (apart.structures, apart.better, apart.worse) == (3, 1, 1)
    assert apart.ratio == pytest.approx(1.0)
    assert apart.low < 1 < apart.high
    together = compared(mine, other, {"a": "s", "b": "s", "c": "t"})
    assert (together.structures, together.better, together.worse) == (2, 0, 0)
    assert (together.ratio, together.low, together.high, together.p) == (1.0, 1.0, 1.0, 1.0)


def test_what_is_better_everywhere_is_significant() -> None:
    mine = {str(i): 1.0 for i in range(8)}
    other = {str(i): 1.1 + 0.01 * i for i in range(8)}
    found = compared(mine, other, {name: name for name in mine})
    assert found.high < 1
    assert found.p == pytest.approx(2 / 2**8)


def test_rounding_is_no_difference() -> None:
    found = compared({"a": 1.0, "b": 1.0}, {"a": 1.0 + 1e-8, "b": 1.0}, {"a": "a", "b": "b"})
    assert (found.better, found.ratio) == (0, 1.0)


def test_holm_corrects_for_the_number_of_comparisons() -> None:
    # The example of the textbooks: 0.01, 0.04, 0.03, 0.005 become 0.03, 0.06, 0.06, 0.02.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
