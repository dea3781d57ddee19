"""Inputs of the process that opens a session for the first time: executors/onnx_runtimes/first_run.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from torchrlopt.errors import LoweringError
from torchrlopt.executors.isolation.task import Task
from torchrlopt.executors.onnx_runtimes import first_run
from torchrlopt.executors.onnx_runtimes.first_run import FirstRun, Request

HELD = {"w": torch.ones(1000, 1000), "half": torch.ones(3, dtype=torch.bfloat16)}


class Recorder:
    """Notes what would be done."""

    def __init__(self) -> None:
        self.calls: list[tuple[Task, str, Mapping[str, Any], bytes]] = []

    def __call__(self, *call: Any) -> None:
        self.calls.append(call)


def feeds(rows: int) -> dict[str, torch.Tensor]:
    return {"x": torch.ones(rows, 2), "n": torch.tensor(rows)}


def first(recorder: Recorder, varies: bool = False) -> FirstRun:
    return FirstRun(lambda held: Request(b"proto", {"threads": len(held)}), recorder, varies)


@pytest.mark.parametrize(("varies", "expected"), [(False, 1), (True, 2)])
def test_each_set_of_sizes_is_tried_once_and_no_more_than_two(varies: bool, expected: int) -> None:
    recorder = Recorder()
    trial = first(recorder, varies)
    for rows in (3, 3, 4, 5, 3):
        given = feeds(rows)
        if not trial.is_over and trial.is_needed(list(given.values())):
            trial.run(HELD, given)
    assert len(recorder.calls) == expected


def test_a_process_that_memory_does_not_suffice_for_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(first_run, "available_bytes", lambda: 7_000_000)
    with pytest.raises(LoweringError, match=r"no memory .* expected: 8 MB; got: 7 MB"):
        first(recorder).run(HELD, feeds(1))
    assert not recorder.calls
    monkeypatch.setattr(first_run, "available_bytes", lambda: 12_000_000)
    first(recorder).run(HELD, feeds(1))
    ((task, *_),) = recorder.calls
    assert 5_900_000 < task.memory_bytes < 6_000_000  # three quarters of what the arrays leave
