"""Which agent a searcher follows: torchrlopt/agent/catalogue.py, planning.py."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from tests.agent.agent_cases import COST, GRAPHS, LIBRARY
from torchrlopt.agent import catalogue, checkpoint
from torchrlopt.agent.networks.candidate_controller import ControllerConfig
from torchrlopt.errors import AgentError, OptionsError
from torchrlopt.options import SearchOptions
from torchrlopt.plan import planning
from torchrlopt.searcher_table import agent_names

SMALL = ControllerConfig(width=16, rounds=2)


def write(path: Path, seed: int) -> Path:
    checkpoint.save(path, checkpoint.new_controller(LIBRARY, SMALL, seed), LIBRARY, {})
    return path


def test_the_option_wins_over_the_variable_and_that_over_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert catalogue.path_of(SearchOptions(searcher="agent")).parent == catalogue.FOLDER
    monkeypatch.setenv(catalogue.VARIABLE, str(tmp_path / "mine.safetensors"))
    assert catalogue.path_of(SearchOptions(searcher="agent")) == tmp_path / "mine.safetensors"
    assert catalogue.path_of(SearchOptions(searcher="mf")) == catalogue.FOLDER / "mf.safetensors"
    given = SearchOptions(searcher="agent", agent=str(tmp_path / "other.safetensors"))
    assert catalogue.path_of(given) == tmp_path / "other.safetensors"


def test_an_agent_is_read_once_and_again_when_it_was_replaced(tmp_path: Path) -> None:
    options = SearchOptions(searcher="agent", agent=str(write(tmp_path / "a.safetensors", 0)))
    first, digest = catalogue.searcher_of(options, LIBRARY), catalogue.digest(options)
    assert catalogue.searcher_of(options, LIBRARY) is first
    write(tmp_path / "a.safetensors", 1)
    assert catalogue.digest(options) != digest
    assert catalogue.searcher_of(options, LIBRARY) is not first
    assert catalogue.digest(SearchOptions(searcher="greedy")) == ""


def test_the_default_agent_is_one_network() -> None:
    default = SearchOptions(searcher="agent")
    assert catalogue.path_of(default) == catalogue.FOLDER / f"{catalogue.DEFAULT_ROW}.safetensors"
    assert catalogue.digest(default) == catalogue.digest(SearchOptions(searcher=catalogue.DEFAULT_ROW))


def test_a_plan_says_who_made_it(tmp_path: Path) -> None:
    options = SearchOptions(searcher="agent", agent=str(write(tmp_path / "a.safetensors", 0)), budget_ms=1000)
    plan = planning.search_plan(GRAPHS[0], LIBRARY, COST, options)
    assert plan.searcher == "agent"
    assert plan.cost_after_ms < plan.cost_before_ms


def test_without_an_agent_greedy_and_beam_plan(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    missing = str(tmp_path / "missing.safetensors")
    with caplog.at_level(logging.WARNING, "torchrlopt"):
        plan = planning.search_plan(GRAPHS[0], LIBRARY, COST, SearchOptions(searcher="agent", agent=missing))
    assert "missing.safetensors" in caplog.text
    assert plan.searcher in ("greedy", "beam")
    assert plan.cost_after_ms < plan.cost_before_ms
    with pytest.raises(AgentError, match=r"missing\.safetensors"):
        planning.search_plan(
            GRAPHS[0], LIBRARY, COST, SearchOptions(searcher="agent", agent=missing, on_error="raise")
        )


@pytest.mark.parametrize("name", agent_names())
def test_searchers_that_follow_an_agent_take_one(name: str) -> None:
    given = SearchOptions(searcher=name, agent="a.safetensors")
    assert given.with_searcher("plan").agent == "a.safetensors"
    assert given.with_searcher("none") == SearchOptions(searcher="none")


def test_other_searchers_refuse_an_agent() -> None:
    with pytest.raises(OptionsError, match="agent has no effect on this searcher"):
        SearchOptions(searcher="greedy", agent="a.safetensors")


def test_the_control_is_random_and_has_the_same_sizes(tmp_path: Path) -> None:
    agent = checkpoint.load(write(tmp_path / "a.safetensors", 0), LIBRARY)
    one, again, other = (checkpoint.random_control(agent, LIBRARY, seed).controller for seed in (0, 0, 1))
    states = [dict(each.state_dict()) for each in (one, again, other)]
    assert {name: tensor.shape for name, tensor in states[0].items()} == {
        name: tensor.shape for name, tensor in agent.controller.state_dict().items()
    }
    last = "scorer.score.3.weight"
    assert torch.equal(states[0][last], states[1][last])
    assert not torch.equal(states[0][last], states[2][last])
