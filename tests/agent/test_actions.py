"""Actions of a policy on real graphs: torchrlopt/agent/networks/actions.py and agent_network.py."""

from __future__ import annotations

import pytest
import torch

from tests.agent.agent_cases import COST, GRAPHS, LIBRARY, TWINS, make_env, new_network
from torchrlopt import _C
from torchrlopt.agent.checkpoint import Agent
from torchrlopt.agent.networks.actions import Choices, no_noise
from torchrlopt.agent.networks.agent_network import Player
from torchrlopt.agent.observation import observe
from torchrlopt.agent.search.searcher import AgentSearcher
from torchrlopt.options import SearchOptions
from torchrlopt.plan.search import ClassicSearcher, replay
from torchrlopt.substitutions import load_library
from torchrlopt.substitutions.load import subset_of

PRIMITIVES = load_library(primitives_only=True)


@pytest.mark.parametrize("has_macros", [False, True])
@pytest.mark.parametrize("library", [LIBRARY, PRIMITIVES])
def test_never_worse_than_greedy_with_any_library(has_macros: bool, library: _C.Library) -> None:
    searcher = AgentSearcher(Agent(new_network(has_macros=has_macros), {}))
    for graph in (*GRAPHS, _C.parse_graph(TWINS)):
        options = SearchOptions(searcher="greedy", budget_ms=60_000.0, budget_steps=40)
        greedy = ClassicSearcher().search(graph, library, COST, options)
        plan = searcher.search(graph, library, COST, options)
        assert plan.cost_after_ms <= greedy.cost_after_ms
        assert plan.expansions > greedy.expansions
        after = replay(graph, library, plan)
        assert COST.total(after)["time_us"] / 1000 == pytest.approx(plan.cost_after_ms, rel=1e-9)


@pytest.mark.parametrize("has_macros", [False, True])
def test_substitutions_it_does_not_know_are_never_taken(has_macros: bool) -> None:
    known = new_network(PRIMITIVES, has_macros=has_macros)
    env = make_env(3, has_macros=has_macros)
    player = Player(known, known.rows_of(LIBRARY.names))
    with torch.no_grad():
        for _ in range(6):
            env.step(player.choose(observe(env), no_noise).tolist())
    names = {name for episode in range(3) for name, _ in env.steps(episode)}
    begun = {name for episode in range(3) for name, _ in make_env(3, has_macros=False).steps(episode)}
    assert names - begun <= set(PRIMITIVES.names)


def test_a_class_of_places_of_an_unknown_substitution_is_no_action() -> None:
    env = _C.VecRewriteEnv([_C.parse_graph(TWINS)], LIBRARY, COST, num_envs=1, has_macros=True)
    env.reset([0], [{}])
    seen = observe(env)
    at_once = seen.substitutions[seen.column("candidate", "is_macro") > 0].tolist()
    assert at_once
    kept = [name for place, name in enumerate(LIBRARY.names) if place not in at_once]
    known = new_network(subset_of(LIBRARY, kept), has_macros=True)
    rows = known.rows_of(LIBRARY.names)
    legal = Choices(seen, 2 * len(kept), has_macros=True, rows=rows).legal
    assert not legal.num_locations[:, len(kept) :].any()
    is_known = rows[seen.substitutions] >= 0
    assert int(legal.num_locations.sum()) == int(is_known.sum())


def test_another_order_of_the_library_changes_nothing() -> None:
    seen = observe(make_env(3, has_macros=False))
    plain = Choices(seen, len(LIBRARY))
    turned = torch.arange(len(LIBRARY)).flip(0)
    other = Choices(seen, len(LIBRARY), rows=turned)
    assert torch.equal(other.legal.num_locations.flip(1), plain.legal.num_locations)
    assert torch.equal(other.legal.savings.flip(1), plain.legal.savings)
    for episode in range(3):
        for substitution in torch.nonzero(plain.legal.num_locations[episode]).flatten().tolist():
            for rank in range(int(plain.legal.num_locations[episode, substitution])):
                action = torch.tensor([[substitution, rank]] * 3)
                mirrored = torch.tensor([[int(turned[substitution]), rank]] * 3)
                assert plain.rows_of(action)[episode] == other.rows_of(mirrored)[episode]


def test_where_nothing_is_known_it_stops() -> None:
    seen = observe(make_env(2, has_macros=False))
    choices = Choices(seen, 4, rows=torch.full((len(LIBRARY),), -1))
    assert choices.legal.mask.tolist() == [[False] * 4 + [True]] * 2
    assert torch.equal(choices.rows_of(torch.tensor([[4, 0], [4, 0]])), seen.counts)
