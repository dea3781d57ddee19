"""Ragged observations, their schema, and operations on groups of rows: torchrlopt/agent/observation.py."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.agent.agent_cases import LIBRARY, make_env, make_observation
from torchrlopt import _C
from torchrlopt.agent.networks.ragged import (
    segment_argmax,
    segment_log_softmax,
    segment_max,
    segment_mean,
    segment_sum,
)
from torchrlopt.agent.networks.substitution_encoder import SubstitutionEncoder, SubstitutionGraphs
from torchrlopt.agent.observation import Observation, Schema, collate, observe, observe_in_place
from torchrlopt.env import Observer, allocate
from torchrlopt.errors import AgentError, EnvError


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
    whole, observer = observe(env), Observer(env)
    assert_equal(observe_in_place(observer, [2, 0]), collate([whole.episode(2), whole.episode(0)]))
    assert_equal(observe_in_place(observer), whole)
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


@pytest.mark.parametrize("array", ["node", "edge", "global", "candidate"])
def test_only_a_column_that_is_gone_is_refused_and_named(array: str) -> None:
    schema = Schema.current()
    names = schema.columns[array]

    def core_with(*columns: str) -> Schema:
        return Schema({**schema.columns, array: columns}, schema.ops)

    for changed in ((*names, "novelty"), ("novelty", *names), tuple(reversed(names))):
        assert core_with(*changed).hash != schema.hash
        schema.check(core_with(*changed))
    with pytest.raises(AgentError, match=f"the {array} features; expected: {names[-1]}; got: {names[0]}"):
        schema.check(core_with(*names[:-1]))


@pytest.mark.parametrize("text", ["", "3", "{}", '{"columns": {}, "ops": []}'])
def test_a_malformed_schema_is_refused(text: str) -> None:
    with pytest.raises(AgentError, match="malformed"):
        Schema.from_json(text)


def test_an_unknown_operator_has_the_last_row() -> None:
    schema = Schema.current()
    rows = schema.rows_of_ops(["Relu", "NeverSeen"])
    assert rows.tolist() == [schema.ops.index("Relu"), len(schema.ops)]


def test_sums_means_maxima_and_softmax_of_groups_are_those_of_each_group() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(7, 3, generator=generator)
    group = torch.tensor([2, 0, 0, 2, 2, 3, 0])
    for i in (0, 2, 3):
        mine = rows[group == i]
        torch.testing.assert_close(segment_sum(rows, group, 4)[i], mine.sum(0))
        torch.testing.assert_close(segment_mean(rows, group, 4)[i], mine.mean(0))
        torch.testing.assert_close(segment_max(rows, group, 4)[i], mine.max(0).values)
        log_probs = segment_log_softmax(rows[:, 0] * 100, group, 4)[group == i]
        torch.testing.assert_close(log_probs, (mine[:, 0] * 100).log_softmax(0))
    for empty in (segment_sum, segment_mean, segment_max):
        assert (empty(rows, group, 4)[1] == 0).all()
    assert segment_argmax(torch.tensor([1.0, 2, 2, 0, 5, -1, 2]), group, 4).tolist() == [1, -1, 4, 5]


def test_every_substitution_has_an_embedding_of_its_own() -> None:
    schema = Schema.current()
    torch.manual_seed(0)
    rows = SubstitutionEncoder(schema)(SubstitutionGraphs.of(LIBRARY, schema))
    assert rows.shape == (len(LIBRARY), 32)
    assert rows.isfinite().all()
    assert (torch.cdist(rows, rows) + torch.eye(len(rows)) > 1e-6).float().mean() > 0.999


def test_an_embedding_depends_on_what_a_substitution_says_not_on_its_company() -> None:
    schema = Schema.current()
    encoder = SubstitutionEncoder(schema)
    names = LIBRARY.names
    text = "\n".join(LIBRARY.text(name) for name in (names[40], names[7]))
    alone = encoder(SubstitutionGraphs.of(_C.Library(text), schema))
    whole = encoder(SubstitutionGraphs.of(LIBRARY, schema))
    torch.testing.assert_close(alone, whole[[40, 7]], rtol=1e-4, atol=1e-5)


def test_pattern_and_replacement_are_not_the_same() -> None:
    schema = Schema.current()
    text = "substitution {}\n  y = {}(x)\n=>\n  t = {}(x)\n  y = {}(t)\nproof tested\n"
    graphs = SubstitutionGraphs.of(
        _C.Library(
            text.format("there", "Relu", "Relu", "Relu")
            + "substitution back\n  t = Relu(x)\n  y = Relu(t)\n=>\n  y = Relu(x)\nproof tested\n"
        ),
        schema,
    )
    one, other = SubstitutionEncoder(schema)(graphs)
    assert (one - other).abs().max() > 1e-3
