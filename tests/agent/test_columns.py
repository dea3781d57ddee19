"""Agents find columns by name: agent and core of different versions, through `AgentSearcher`."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.agent.agent_cases import COST, GRAPHS, LIBRARY, make_observation, new_network
from torchrlopt import _C
from torchrlopt.agent import catalogue, checkpoint, observation
from torchrlopt.agent.checkpoint import Agent
from torchrlopt.agent.networks.agent_network import features_of
from torchrlopt.agent.observation import ARRAYS, Schema
from torchrlopt.agent.search.searcher import AgentSearcher
from torchrlopt.env import columns
from torchrlopt.options import SearchOptions
from torchrlopt.plan.search import Plan

OPTIONS = SearchOptions(budget_ms=60_000.0, budget_steps=60)


def plan_of(agent: Agent, library: _C.Library = LIBRARY) -> Plan:
    return AgentSearcher(agent).search(GRAPHS[1], library, COST, OPTIONS)


def load(library: _C.Library = LIBRARY) -> Agent:
    return checkpoint.load(catalogue.SHIPPED, library)


def with_a_new_column(core: pytest.MonkeyPatch) -> None:
    """A core that writes one more column of sevens, the second one, into every array of features."""
    as_tensors = observation._as_tensors

    def names(array: str) -> tuple[str, ...]:
        first, *others = columns(array)
        return (first, "novelty", *others)

    def widened(arrays: dict[str, np.ndarray]) -> observation.Observation:
        features = {f"{array}s": np.insert(arrays[f"{array}s"], 1, 7.0, axis=1) for array in ARRAYS}
        return as_tensors({**arrays, **features})

    core.setattr(observation, "columns", names)
    core.setattr(observation, "_as_tensors", widened)


def test_a_column_that_an_agent_does_not_know_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = plan_of(load())
    with_a_new_column(monkeypatch)
    assert Schema.current().columns["node"][1] == "novelty"
    with caplog.at_level(logging.WARNING, "torchrlopt"):
        after = plan_of(load())
    assert not caplog.records
    assert (after.steps, after.expansions) == (before.steps, before.expansions)
    assert before.expansions > 10


def without(schema: Schema, place: int) -> Schema:
    """The schema of an older version: one column of each array had not been there."""
    shorter = {array: names[:place] + names[place + 1 :] for array, names in schema.columns.items()}
    return Schema(shorter, schema.ops)


def test_an_agent_of_an_older_core_says_what_one_says_that_gives_the_new_column_no_weight(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, schema = 2, Schema.current()
    old = new_network(schema=without(schema, place))
    new = new_network()
    weights = dict(old.state_dict())
    for name, tensor in new.state_dict().items():
        if weights[name].shape != tensor.shape:  # a layer that reads the column
            gap = torch.zeros(len(tensor), 1)
            weights[name] = torch.cat([weights[name][:, :place], gap, weights[name][:, place:]], dim=1)
    new.load_state_dict(weights)

    path = tmp_path / "old.safetensors"
    checkpoint.save(path, old, LIBRARY, {})
    with caplog.at_level(logging.WARNING, "torchrlopt"):
        agent = checkpoint.load(path, LIBRARY)
        plan = plan_of(agent)
    assert not caplog.records
    seen = make_observation(3)
    with torch.no_grad():
        mine, its = (features_of(network.encoder, seen) for network in (agent.network, new))
    torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)
    assert plan.cost_after_ms < plan.cost_before_ms
