"""Workers that are Ray actors: training/collectors/ray_crew.py. Ray is in the extra `ray`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.collector_cases import KEYS, STATE, Numbers, OfTaskError, expected
from torchrlopt.errors import OptionsError
from training.collectors.collector import Collector
from training.collectors.data_hash import data_hash
from training.config import ROWS
from training.papers.collecting import on_graphs
from training.papers.learn import DriverTask, train

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")

pytestmark = pytest.mark.nightly


class Idle:
    """Has a processor."""

    def wait(self) -> None:
        return None


@pytest.fixture(scope="module", autouse=True)
def _one_ray() -> Iterator[None]:
    """Beginning takes seconds, so that all tests share one."""
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_data_of_actors_are_those_of_one_process(workers: int) -> None:
    with Collector(Numbers(), "ray", workers) as collector:
        collector.collect(STATE[::-1], KEYS)
        assert data_hash(collector.collect(STATE, KEYS)) == expected()
        assert collector.replaced == 0


def test_more_workers_than_processors_are_refused_and_not_waited_for() -> None:
    with pytest.raises(OptionsError, match="too few processors; expected: 5, one a worker; got: 4"):
        Collector(Numbers(), "ray", 5).collect(STATE, KEYS)


def test_processors_that_others_have_are_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from training.collectors import ray_crew  # needs Ray

    monkeypatch.setattr(ray_crew, "PATIENCE_S", 0.5)
    others = [ray.remote(num_cpus=1)(Idle).remote() for _ in range(3)]
    ray.get([each.wait.remote() for each in others])
    with pytest.raises(OptionsError, match=r"taken by others.*; got: 1"):
        Collector(Numbers(), "ray", 2).collect(STATE, KEYS)
    for each in others:
        ray.kill(each)
    monkeypatch.undo()
    with Collector(Numbers(), "ray", 2) as collector:  # theirs are free a moment later
        assert data_hash(collector.collect(STATE, KEYS)) == expected()


def test_an_actor_that_is_killed_changes_nothing(tmp_path: Path) -> None:
    with Collector(Numbers(tmp_path / "died"), "ray", 2, share=2) as collector:
        assert data_hash(collector.collect(STATE, KEYS)) == expected()
        assert collector.replaced == 1


@pytest.mark.parametrize("row", ROWS)
def test_episodes_of_actors_are_those_of_one_process(row: str) -> None:
    small = {
        "groups": 3, "rollouts": 2, "max_steps": 3, "updates": 3, "model_epochs": 1, "epochs": 1,
        "dream_updates": 1, "dream_batch": 8, "dream_horizon": 2,
    }  # fmt: skip
    found = []
    for kind, workers in (("in_process", 1), ("ray", 2)):
        settings = tuple({**small, "workers": workers, "collector": kind}.items())
        found.append(on_graphs.function(None, row=row, settings=settings, test_graphs=0))
    assert found[0]["data"] == found[1]["data"]
    assert found[0]["weights"] == found[1]["weights"]


def test_a_run_does_not_depend_on_ray() -> None:
    task = DriverTask("ackley", "uncertainty")
    alone, apart = train(task, 0, 10), train(task, 0, 10, "ray", 2)
    assert (alone.data, alone.weights, alone.errors) == (apart.data, apart.weights, apart.errors)


def test_what_the_task_raises_reaches_the_learner() -> None:
    with Collector(Numbers(), "ray", 2) as collector, pytest.raises(OfTaskError):
        collector.collect(STATE, [1, -4, 2])
