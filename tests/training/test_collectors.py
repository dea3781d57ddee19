"""The interface of collection: training/collectors/."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.crosses import nightly_but
from tests.training.collector_cases import KEYS, STATE, NoPlayer, Numbers, OfTaskError, expected
from training.collectors.collector import MAX_LOSSES, Collector
from training.collectors.data_hash import data_hash
from training.collectors.worker import packed, unpacked


def collected(task: Numbers, workers: int, share: int | None = 1) -> tuple[list[dict[str, object]], int]:
    """Results of the second collection; the first one, with another state, must leave nothing behind."""
    with Collector(task, workers, share) as collector:
        collector.collect(STATE[::-1], KEYS)
        found = collector.collect(STATE, KEYS)
        assert collector.collect_seconds > 0
        assert collector.broadcast_seconds > 0
        return found, collector.replaced


@pytest.mark.parametrize(("workers", "share"), nightly_but([(1, 1), (2, None)], [(1, 1), (2, None), (4, 3)]))
def test_data_do_not_depend_on_the_number_of_workers(workers: int, share: int | None) -> None:
    found, replaced = collected(Numbers(), workers, share)
    assert [each["key"] for each in found] == KEYS
    assert (data_hash(found), replaced) == (expected(), 0)


def test_a_worker_that_is_killed_changes_nothing(tmp_path: Path) -> None:
    found, replaced = collected(Numbers(tmp_path / "died"), 2, share=2)
    assert (tmp_path / "died").exists()
    assert (data_hash(found), replaced) == (expected(), 1)


@pytest.mark.nightly
def test_a_worker_that_is_killed_between_two_collections_changes_nothing() -> None:
    with Collector(Numbers(), 2) as collector:
        collector.collect(STATE[::-1], KEYS)
        (process,) = collector._processes[0]._processes.values()
        process.kill()
        process.join()
        assert data_hash(collector.collect(STATE, KEYS)) == expected()
        assert collector.replaced == 1


@pytest.mark.nightly
def test_keys_that_always_kill_their_worker_are_given_up(tmp_path: Path) -> None:
    task = Numbers(tmp_path / "died", always=True)
    with Collector(task, 2) as collector, pytest.raises(RuntimeError, match=r"died while .*\[3\]"):
        collector.collect(STATE, KEYS)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_the_task_raises_reaches_the_learner(workers: int) -> None:
    with Collector(Numbers(), workers) as collector:
        with pytest.raises(OfTaskError, match="-4"):
            collector.collect(STATE, [1, -4, 2])
        assert data_hash(collector.collect(STATE, KEYS)) == expected(), "the workers are still there"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_cannot_begin_says_why(workers: int) -> None:
    with (
        Collector(NoPlayer(is_killed=False), workers) as collector,
        pytest.raises(OfTaskError, match="no player"),
    ):
        collector.collect(STATE, KEYS)


@pytest.mark.nightly
def test_workers_that_die_of_their_state_are_not_replaced_for_ever() -> None:
    with Collector(NoPlayer(is_killed=True), 2) as collector:
        with pytest.raises(RuntimeError, match="while they loaded"):
            collector.collect(STATE, KEYS)
        assert collector.replaced == MAX_LOSSES


def test_no_keys_are_no_results() -> None:
    with Collector(Numbers()) as collector:
        assert collector.collect(STATE, []) == []


@dataclasses.dataclass
class Nested:
    tensors: list[torch.Tensor]
    name: str


def test_results_come_back_as_they_were() -> None:
    given = Nested([torch.arange(6).view(2, 3).T, torch.tensor(True), torch.zeros(0, 2)], "a")
    again = unpacked(packed(given))
    assert data_hash(again) == data_hash(given)
    assert again.tensors[0].is_contiguous(), "sums over other strides may round otherwise"
    assert [each.dtype for each in again.tensors] == [torch.int64, torch.bool, torch.float32]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        ([1, 23], [12, 3]),
        ({"a": 1}, {"b": 1}),
        (Nested([], "a"), Nested([], "b")),
        (np.array([0.0]), np.array([-0.0])),
        (None, 0),
    ],
    ids=["shape", "type", "list", "dict", "field", "sign", "none"],
)
def test_a_hash_tells_data_apart(one: object, other: object) -> None:
    assert data_hash(one) != data_hash(other)


def test_what_has_no_content_has_no_hash() -> None:
    with pytest.raises(TypeError, match="object has no hash"):
        data_hash([object()])
