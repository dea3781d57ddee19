"""The Gymnasium environments: torchrlopt/env/."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from tests.property.test_match_set import ATTENTION, BLOCK
from torchrlopt import _C
from torchrlopt.env import OUTCOMES, REWARDS, columns
from torchrlopt.errors import EnvError
from torchrlopt.substitutions import load_library

pytest.importorskip("gymnasium", reason="gymnasium is not installed")

from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from torchrlopt.env import Padding, RewriteEnv, RewriteVectorEnv

LIBRARY = load_library()
COST = _C.CostModel()
SMALL = Padding(nodes=64, edges=96, candidates=32)
GRAPHS = [_C.parse_graph(ATTENTION), _C.parse_graph(BLOCK)]


def vector(num_envs: int = 3, **options: Any) -> RewriteVectorEnv:
    return RewriteVectorEnv(GRAPHS, LIBRARY, COST, num_envs, padding=SMALL, **options)


def legal(observation: dict[str, np.ndarray], generator: np.random.Generator) -> np.ndarray:
    return np.array([generator.choice(np.flatnonzero(mask)) for mask in observation["action_mask"]])


def test_gymnasium_accepts_the_environment() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*Box .* precision lowered.*")
        warnings.filterwarnings("ignore", message=".*is not within the observation space.*infinity.*")
        check_env(RewriteEnv(GRAPHS, LIBRARY, COST, padding=SMALL, max_steps=20), skip_render_check=True)


def test_an_episode_is_a_plan() -> None:
    env = RewriteEnv(GRAPHS, LIBRARY, COST, padding=SMALL)
    generator = np.random.default_rng(0)
    observation, _ = env.reset(seed=0, options={"graph": 1})
    total, ended = 0.0, False
    while not ended:
        legal_actions = np.flatnonzero(observation["action_mask"][:-1])
        action = generator.choice(legal_actions) if len(legal_actions) else SMALL.candidates
        observation, reward, terminated, truncated, info = env.step(action)
        assert env.observation_space.contains(observation)
        total += reward
        ended = terminated or truncated
    replayed = _C.replay(GRAPHS[1], LIBRARY, env.steps)
    assert replayed.hash() == env.graph.hash()
    assert total == pytest.approx(1 - info["best_us"] / info["initial_us"])


def test_stop_and_illegal_actions() -> None:
    env = RewriteEnv(GRAPHS, LIBRARY, COST, padding=SMALL)
    observation, _ = env.reset(seed=3)
    illegal = int(np.flatnonzero(observation["action_mask"] == 0)[0])
    _, reward, terminated, _, info = env.step(np.int64(illegal))
    assert (reward, terminated, info["is_illegal"]) == (0, False, 1)
    _, _, terminated, _, _ = env.step(np.int64(SMALL.candidates))
    assert terminated
    assert env.steps == []


def test_finished_episodes_begin_anew_within_the_step() -> None:
    env = vector()
    observation, _ = env.reset(seed=1)
    assert env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    actions = legal(observation, np.random.default_rng(0))
    actions[1] = SMALL.candidates
    observation, rewards, terminated, _, info = env.step(actions)
    assert env.observation_space.contains(observation)
    assert terminated.tolist() == [False, True, False]
    assert rewards[1] == 0
    assert info["_final_obs"].tolist() == [False, True, False]
    assert set(info["final_obs"][1]) == set(observation)
    assert info["final_info"]["terminated"][1] == 1
    assert env.steps(1) == [], "already the next episode"
    assert observation["globals"][1, columns("global").index("cost")] == 1


def test_no_transition_is_made_up() -> None:
    """Every step of every episode changes the graph, stops or is illegal."""
    env = vector(4, max_steps=5)
    generator = np.random.default_rng(2)
    observation, _ = env.reset(seed=2)
    counts = np.zeros(4)
    for _ in range(40):
        observation, _, terminated, truncated, info = env.step(legal(observation, generator))
        counts += 1
        assert (info["num_steps"] == counts).all()
        counts[terminated | truncated] = 0


def test_without_autoreset_episodes_wait() -> None:
    env = vector(autoreset_mode=AutoresetMode.DISABLED)
    env.reset(seed=1)
    env.step(np.full(3, SMALL.candidates))
    _, rewards, terminated, _, info = env.step(np.zeros(3, dtype=np.int64))
    assert terminated.all()
    assert not rewards.any()
    assert "final_obs" not in info
    mask = np.array([True, False, False])
    _, info = env.reset(options={"reset_mask": mask, "starts": [{"graph": 1}]})
    assert info["terminated"].tolist() == [0, 1, 1]


def test_next_step_autoreset_is_refused() -> None:
    with pytest.raises(EnvError, match="SAME_STEP or DISABLED"):
        vector(autoreset_mode=AutoresetMode.NEXT_STEP)


def test_same_seed_same_starts() -> None:
    first, second = (vector(6).reset(seed=9)[0] for _ in range(2))
    assert all((first[name] == second[name]).all() for name in first)


def test_rewards_are_the_learners_choice() -> None:
    env = vector(2, reward=REWARDS["R5"])
    observation, _ = env.reset(seed=4)
    _, rewards, _, _, info = env.step(legal(observation, np.random.default_rng(1)))
    expected = (info["cost_before_us"] - info["cost_after_us"]) / info["initial_us"]
    np.testing.assert_allclose(rewards, expected, atol=1e-12)


def test_memory_traffic_is_counted_against_that_of_the_episodes_own_first_graph() -> None:
    env = vector(2, reward=REWARDS["R3"], autoreset_mode=AutoresetMode.DISABLED)
    env.reset(seed=4, options={"starts": [{"graph": 0}, {"graph": 0}]})
    again = np.array([True, False])
    _, first = env.reset(options={"reset_mask": again, "starts": [{"graph": 1}]})
    assert first["bytes"][0] != first["bytes"][1]
    generator, before, observation = np.random.default_rng(1), first, env._observe()
    seen = 0.0
    for _ in range(5):
        observation, rewards, _, _, info = env.step(legal(observation, generator))
        time = (before["cost_after_us"] - info["cost_after_us"]) / info["initial_us"]
        traffic = (before["bytes"] - info["bytes"]) / first["bytes"]
        np.testing.assert_allclose(rewards, 0.1 * time + 0.9 * traffic, atol=1e-12)
        seen += float(np.abs(traffic).max())
        before = info
    assert seen > 0


def test_padding_leaves_out_what_does_not_fit() -> None:
    env = RewriteEnv(GRAPHS, LIBRARY, COST, padding=Padding(nodes=5, edges=3, candidates=1))
    observation, _ = env.reset(seed=0, options={"graph": 0})
    assert env.observation_space.contains(observation)
    assert observation["action_mask"].tolist() == [1, 1]
    assert observation["edge_index"].max() < 5


def test_outcomes_have_names() -> None:
    assert list(OUTCOMES) == _C.OUTCOME_COLUMNS
