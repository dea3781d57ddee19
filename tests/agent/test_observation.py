"""Ragged observations and their schema: torchrlopt/agent/observation.py."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.agent.agent_cases import make_env, make_observation
from torchrlopt.agent.observation import Observation, Schema, collate, observe
from torchrlopt.env import allocate
from torchrlopt.errors import EnvError


def assert_equal(one: Observation, other: Observation) -> None:
    for field in dataclasses.fields(Observation):
        assert torch.equal(getattr(one, field.name), getattr(other, field.name)), field.name


def test_splitting_and_collating_gives_the_observation_back() -> None:
    whole = make_observation(4)
    assert whole.num_episodes == 4
    assert (whole.counts > 0).all()
    assert_equal(collate(whole.split()), whole)


def test_an_episode_by_itself_is_what_an_environment_of_its_own_shows() -> None:
    alone = make_env(1)
    alone.reset([0], [{"graph": 1, "random_steps": 1, "seed": 1}])
    assert_equal(observe(alone), make_observation(2).episode(1))


@pytest.mark.parametrize("threads", [1, 2])
def test_some_episodes_are_observed_in_the_order_given(threads: int) -> None:
    env = make_env(3, num_threads=threads)
    whole = observe(env)
    assert_equal(observe(env, [2, 0]), collate([whole.episode(2), whole.episode(0)]))
    # What was named is forgotten when something happens.
    env.sizes([1])
    env.step([-1, -1, -1])
    arrays = allocate(env.sizes())
    env.sizes([1])
    env.step([-1, -1, -1])
    env.observe(arrays)
    assert arrays["globals"].shape[0] == 3


@pytest.mark.parametrize("envs", [[3], [-1], [0, 0]])
def test_episodes_that_are_not_there_are_not_observed(envs: list[int]) -> None:
    with pytest.raises(EnvError, match="different numbers below 3"):
        make_env(3).sizes(envs)


def test_an_episode_keeps_no_memory_of_the_others() -> None:
    whole = make_observation(2)
    one = whole.episode(0)
    before = one.nodes.clone()
    whole.nodes.zero_()
    assert torch.equal(one.nodes, before)


def test_a_schema_survives_text_and_fits_itself() -> None:
    schema = Schema.current()
    again = Schema.from_json(schema.to_json())
    assert (again, again.hash) == (schema, schema.hash)
    again.check(schema)


def test_an_unknown_operator_has_the_last_row() -> None:
    schema = Schema.current()
    rows = schema.rows_of_ops(["Relu", "NeverSeen"])
    assert rows.tolist() == [schema.ops.index("Relu"), len(schema.ops)]
