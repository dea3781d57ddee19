"""Controls of the agent, and comparisons of two searchers: baselines/shared/controls.py, paired.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("scipy", reason="intervals need scipy")

from baselines.shared.controls import NAMES, control, random_network, shuffled_network, without_network
from baselines.shared.paired import compared, holm
from tests.agent.agent_cases import COST, GRAPHS, LIBRARY, make_observation, new_agent
from torchrlopt.agent.networks.actions import Choices, LatentState
from torchrlopt.options import SearchOptions

AGENT = new_agent(seed=3)


def test_without_a_network_substitutions_are_likely_by_what_they_save() -> None:
    policy = without_network(AGENT.network).policy
    legal = Choices(make_observation(), len(LIBRARY)).legal
    features = torch.randn(2, AGENT.network.model.state_width)
    with torch.no_grad():
        log_probs = policy.substitutions(LatentState(features, legal))[1]
    for likely, mask, savings in zip(log_probs[:, :-1], legal.mask[:, :-1], legal.savings, strict=True):
        gaps = likely[mask] - likely[mask][0]
        torch.testing.assert_close(gaps, 10.0 * (savings[mask] - savings[mask][0]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("make", [shuffled_network, random_network])
def test_other_weights_depend_on_the_seed_alone_and_leave_the_agent_as_it_is(make: Any) -> None:
    before = AGENT.network.policy.key.weight.clone()
    one, again, other = (make(AGENT.network, seed).policy.key.weight for seed in (0, 0, 1))
    assert torch.equal(AGENT.network.policy.key.weight, before)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert not torch.equal(one, before)
    if make is shuffled_network:
        assert torch.equal(one.flatten().sort().values, before.flatten().sort().values)


@pytest.mark.parametrize("name", NAMES)
def test_a_control_plans_under_its_name(name: str) -> None:
    given = SearchOptions(searcher="greedy", budget_ms=60_000.0, budget_steps=40)
    plan = control(name, AGENT, 0).search(GRAPHS[0], LIBRARY, COST, given)
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


def test_holm_corrects_for_the_number_of_comparisons() -> None:
    # The example of the textbooks: 0.01, 0.04, 0.03, 0.005 become 0.03, 0.06, 0.06, 0.02.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
