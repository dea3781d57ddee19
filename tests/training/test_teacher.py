"""Search as a teacher, and graphs without composites: training/episodes/."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.agent.agent_cases import COST, GRAPHS, LIBRARY
from tests.core.test_search import HILL
from tests.core.test_search import LIBRARY as HILLS
from torchrlopt import _C
from torchrlopt.substitutions import is_composite
from training.collectors.worker import state_of
from training.config import Config
from training.episodes.candidate_task import CandidatePlayer, controller_config, library_of
from training.episodes.play import CandidateChooser, Key, play_group, shown_steps
from training.learning.distil import lessons_of
from training.networks.candidate_controller import new_controller

SMALL = Config(
    groups=2, rollouts=3, max_steps=12, width=16, rounds=2, teacher_expansions=60, original_share=1.0
)


def test_the_teacher_crosses_a_hill() -> None:
    library = _C.Library(HILLS)
    steps = shown_steps(_C.parse_graph(HILL), library, COST, Key(0, 0, 0), SMALL)
    assert [library.names[row] for row, _ in steps] == ["square_relu", "square_relu", "cancel_three"]


def test_the_first_episode_is_the_teachers() -> None:
    controller = new_controller(LIBRARY, controller_config(SMALL)).eval()
    chooser = CandidateChooser(controller)
    rollout = play_group(chooser, LIBRARY, COST, Key(0, 0, 0), SMALL, graph=GRAPHS[0])
    assert rollout is not None
    steps = shown_steps(GRAPHS[0], LIBRARY, COST, Key(0, 0, 0), SMALL)
    after = _C.replay(GRAPHS[0], LIBRARY, [(LIBRARY.names[row], location) for row, location in steps])
    before_us, after_us = (COST.total(graph)["time_us"] for graph in (GRAPHS[0], after))
    assert float(rollout.returns[0]) == pytest.approx(1 - after_us / before_us, rel=1e-4)
    last = int(rollout.active[:, 0].sum()) - 1
    assert int(rollout.actions[last, 0]) == int(rollout.states[last].counts[0]), "it stops in the end"
    without = dataclasses.replace(SMALL, row="mf")
    alone = play_group(chooser, LIBRARY, COST, Key(0, 0, 0), without, graph=GRAPHS[0])
    assert alone is not None
    assert alone.actions[:, 0].tolist() != rollout.actions[:, 0].tolist()


def test_of_equal_episodes_the_shorter_one_teaches() -> None:
    controller = new_controller(LIBRARY, controller_config(SMALL)).eval()
    chooser = CandidateChooser(controller)
    rollout = play_group(chooser, LIBRARY, COST, Key(0, 0, 0), SMALL, graph=GRAPHS[0])
    assert rollout is not None
    steps, count = rollout.rewards.shape
    rewards = torch.zeros(steps, count)
    rewards[0, 0] = rewards[1, 0] = 0.1  # two steps
    rewards[0, 1] = 0.2  # one step
    active = torch.ones(steps, count, dtype=torch.bool)
    lessons = lessons_of(dataclasses.replace(rollout, rewards=rewards, active=active))
    taught = [lesson for lesson in lessons if lesson.target >= 0]
    assert taught[0].target == int(rollout.actions[0, 1])
    assert taught[0].value == pytest.approx(0.2)


def test_groups_without_composites_speak_of_the_whole_library() -> None:
    config = dataclasses.replace(SMALL, primitives_share=1.0)
    key = Key(5, 0, 0)
    primitives = library_of(key, config)
    assert (
        len(primitives)
        < len(LIBRARY)
        == len(library_of(key, dataclasses.replace(config, primitives_share=0)))
    )
    controller = new_controller(LIBRARY, controller_config(config))
    player = CandidatePlayer(config)
    player.load(state_of(controller))
    played = [player.play(Key(5, 0, group)) for group in range(4)]
    seen: set[str] = set()
    for rollout in played:
        for states in rollout.states if rollout is not None else ():
            seen |= {LIBRARY.names[row] for row in states.substitutions.unique().tolist()}
    assert seen
    assert not any(is_composite(LIBRARY, name) for name in seen)
    assert seen <= set(primitives.names)
