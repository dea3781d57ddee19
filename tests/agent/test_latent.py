"""Latent agents: torchrlopt/agent/world/latent_controller.py, search/drawn_episodes.py, checkpoint.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.agent.agent_cases import COST, GRAPHS, LIBRARY, TWINS, make_env
from torchrlopt import _C
from torchrlopt.agent import checkpoint
from torchrlopt.agent.checkpoint import Agent
from torchrlopt.agent.networks.candidate_controller import no_noise
from torchrlopt.agent.networks.substitution_encoder import SubstitutionEncoder, SubstitutionGraphs
from torchrlopt.agent.observation import Schema, observe
from torchrlopt.agent.search.searcher import AgentSearcher
from torchrlopt.agent.world.latent_controller import Choices, LatentConfig, LatentController
from torchrlopt.errors import AgentError
from torchrlopt.options import SearchOptions
from torchrlopt.plan.search import ClassicSearcher, replay
from torchrlopt.substitutions import load_library
from torchrlopt.substitutions.load import subset_of

PRIMITIVES = load_library(primitives_only=True)


def controller(row: str = "wm", library: _C.Library = LIBRARY, has_macros: bool = False) -> LatentController:
    schema = Schema.current()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        rules = SubstitutionEncoder(schema)(SubstitutionGraphs.of(library, schema))
        return LatentController(schema, LatentConfig(row, has_macros=has_macros), library.names, rules).eval()


@pytest.mark.parametrize("has_macros", [False, True])
@pytest.mark.parametrize("row", ["wm", "wm_plus"])
def test_what_is_saved_is_what_is_loaded(row: str, has_macros: bool, tmp_path: Path) -> None:
    given = controller(row, has_macros=has_macros)
    checkpoint.save(tmp_path / "a.safetensors", given, LIBRARY, {"row": row})
    loaded = checkpoint.load(tmp_path / "a.safetensors", LIBRARY).controller
    assert isinstance(loaded, LatentController)
    assert loaded.names == given.names
    assert loaded.config == given.config
    for one, other in zip(given.state_dict().values(), loaded.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert (tmp_path / "a.safetensors").stat().st_size < 8 * 2**20


def test_there_is_no_random_control_of_a_latent_agent() -> None:
    with pytest.raises(AgentError, match="latent"):
        checkpoint.random_control(Agent(controller(), {}), LIBRARY, 0)


@pytest.mark.parametrize(("row", "has_macros"), [("wm", False), ("wm", True), ("wm_plus", False)])
@pytest.mark.parametrize("library", [LIBRARY, PRIMITIVES])
def test_never_worse_than_greedy_with_any_library(row: str, has_macros: bool, library: _C.Library) -> None:
    searcher = AgentSearcher(Agent(controller(row, has_macros=has_macros), {}), row)
    for graph in (*GRAPHS, _C.parse_graph(TWINS)):
        options = SearchOptions(searcher="greedy", budget_ms=60_000.0, budget_steps=40)
        greedy = ClassicSearcher().search(graph, library, COST, options)
        plan = searcher.search(graph, library, COST, options)
        assert plan.searcher == row
        assert plan.cost_after_ms <= greedy.cost_after_ms
        assert plan.expansions > greedy.expansions
        after = replay(graph, library, plan)
        assert COST.total(after)["time_us"] / 1000 == pytest.approx(plan.cost_after_ms, rel=1e-9)


@pytest.mark.parametrize("has_macros", [False, True])
def test_substitutions_it_does_not_know_are_never_taken(has_macros: bool) -> None:
    known = controller(library=PRIMITIVES, has_macros=has_macros)
    env = make_env(3, has_macros=has_macros)
    chooser = known.chooser(rows=known.rows_of(LIBRARY.names))
    assert chooser.has_macros == has_macros
    for _ in range(6):
        env.step(chooser.choose(observe(env), no_noise)[2].tolist())
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
    known = controller(library=subset_of(LIBRARY, kept), has_macros=True)
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
