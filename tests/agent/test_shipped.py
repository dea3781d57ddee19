"""Which agent a searcher follows: torchrlopt/agent/catalogue.py, planning.py."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.agent.agent_cases import COST, GRAPHS, LIBRARY, new_network
from torchrlopt.agent import catalogue, checkpoint
from torchrlopt.errors import AgentError
from torchrlopt.options import SearchOptions
from torchrlopt.plan import planning


def write(path: Path, seed: int) -> Path:
    checkpoint.save(path, new_network(seed=seed, width=16), LIBRARY, {})
    return path


def test_the_option_wins_over_the_variable_and_that_over_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert catalogue.path_of(SearchOptions(searcher="agent")) == catalogue.SHIPPED
    monkeypatch.setenv(catalogue.VARIABLE, str(tmp_path / "mine.safetensors"))
    assert catalogue.path_of(SearchOptions(searcher="agent")) == tmp_path / "mine.safetensors"
    given = SearchOptions(searcher="agent", agent=str(tmp_path / "other.safetensors"))
    assert catalogue.path_of(given) == tmp_path / "other.safetensors"


def test_an_agent_is_read_once_and_again_when_it_was_replaced(tmp_path: Path) -> None:
    options = SearchOptions(searcher="agent", agent=str(write(tmp_path / "a.safetensors", 0)))
    first, digest = catalogue.searcher_of(options, LIBRARY), catalogue.digest(options)
    assert catalogue.searcher_of(options, LIBRARY) is first
    write(tmp_path / "a.safetensors", 1)
    assert catalogue.digest(options) != digest
    assert catalogue.searcher_of(options, LIBRARY) is not first


def test_a_plan_says_who_made_it(tmp_path: Path) -> None:
    options = SearchOptions(searcher="agent", agent=str(write(tmp_path / "a.safetensors", 0)), budget_ms=1000)
    plan = planning.search_plan(GRAPHS[0], LIBRARY, COST, options)
    assert plan.searcher == "agent"
    assert plan.cost_after_ms < plan.cost_before_ms


def test_without_an_agent_its_first_plan_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    missing = str(tmp_path / "missing.safetensors")
    with caplog.at_level(logging.WARNING, "torchrlopt"):
        plan = planning.search_plan(GRAPHS[0], LIBRARY, COST, SearchOptions(searcher="agent", agent=missing))
    assert "missing.safetensors" in caplog.text
    assert plan.searcher != "agent"
    assert plan.cost_after_ms < plan.cost_before_ms
    with pytest.raises(AgentError, match=r"missing\.safetensors"):
        planning.search_plan(
            GRAPHS[0], LIBRARY, COST, SearchOptions(searcher="agent", agent=missing, on_error="raise")
        )


def test_only_the_agent_keeps_its_checkpoint() -> None:
    given = SearchOptions(searcher="agent", agent="a.safetensors")
    assert given.with_searcher("agent").agent == "a.safetensors"
    assert given.with_searcher("none") == SearchOptions(searcher="none")
