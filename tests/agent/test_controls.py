"""Controls of the agent: baselines/shared/controls.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("scipy", reason="intervals need scipy")

from baselines.shared.controls import NAMES, control, random_network, shuffled_network
from tests.agent.agent_cases import COST, GRAPHS, LIBRARY, new_agent
from torchrlopt.options import SearchOptions

AGENT = new_agent(seed=3)


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
