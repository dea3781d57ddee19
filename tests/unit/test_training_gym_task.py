"""Gymnasium environments by the contract of our collectors: training/experiments/gym_task.py."""

from __future__ import annotations

import pytest

from training.collectors.collector import Collector
from training.collectors.data_hash import data_hash
from training.experiments.gym_task import ENVIRONMENTS, MAX_STEPS, Episode, GymTask
from training.experiments.throughput import CONTENDERS, ThroughputRun


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_episodes_depend_on_their_key_only(environment: str) -> None:
    found: dict[str, list[Episode]] = {}
    for kind, workers, keys in (("in_process", 1, (3, 4, 5)), ("threads", 2, (5, 4, 3))):
        with Collector(GymTask(environment), kind, workers) as collector:
            found[kind] = collector.collect(b"", keys)
    assert data_hash(found["in_process"]) == data_hash(found["threads"][::-1])
    for episode in found["in_process"]:
        steps = len(episode.actions)
        assert 0 < steps <= MAX_STEPS
        assert len(episode.rewards) == steps
        assert {len(seen) for seen in episode.observations.values()} == {steps + 1}
        assert episode.terminated or steps in (30, MAX_STEPS)
    assert data_hash(found["in_process"][0]) != data_hash(found["in_process"][1])


def test_steps_are_counted_and_told_once() -> None:
    assert CONTENDERS["ours"][0] == (), "ours needs no package"
    told: list[int] = []
    run = ThroughputRun("ours", "CartPole-v1", 300, 0)
    speed = run.make(lambda: told.append(1))
    assert speed.steps >= 300
    assert speed.cpu_seconds > 0
    assert len(told) == run.num_steps
