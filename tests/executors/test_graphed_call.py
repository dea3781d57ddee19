"""Which recording a call replays; no device is needed, because the recordings are stand-ins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from torchrlopt.executors import cuda_graphs
from torchrlopt.executors.cuda_graphs import MAX_SETS, GraphedCall


class Graphed(GraphedCall):
    """Counts recordings; a replay gives the number of its recording and what it reads now."""

    def _record(self, arguments: Sequence[Any]) -> Any:
        self.num_recorded += 1
        number, weight = self.num_recorded, arguments[0]
        return lambda: (number, float(weight.sum()))

    def _replay(self, recorded: Any, arguments: Sequence[Any]) -> tuple[Any, ...]:
        return recorded()  # type: ignore[no-any-return]


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The weights that Python looked at."""
    found: list[Any] = []

    def fixed_key(value: Any) -> Any:
        found.append(value)
        return (value.data_ptr(), value.shape, value.stride()) if isinstance(value, torch.Tensor) else value

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(cuda_graphs, "_key", lambda value: tuple(value.shape))
    monkeypatch.setattr(cuda_graphs, "_fixed_key", fixed_key)
    return found


def graphed() -> Graphed:
    return Graphed(lambda weight, x: (weight, x), [True, False])


def test_weights_that_are_what_they_were_are_looked_at_once(looked: list[Any]) -> None:
    call, weight = graphed(), torch.ones(2)
    assert [call(weight, torch.ones(3)) for _ in range(4)] == [(1, 2.0)] * 4
    assert len(looked) == 1


def test_a_weight_that_was_written_to_has_its_recording_still(looked: list[Any]) -> None:
    call, weight = graphed(), torch.ones(2)
    call(weight, torch.ones(3))
    weight.add_(1)
    assert call(weight, torch.ones(3)) == (1, 4.0)
    assert len(looked) == 2


def test_a_weight_that_lies_elsewhere_is_recorded_anew(looked: list[Any]) -> None:
    call, weight = graphed(), torch.nn.Parameter(torch.ones(2), requires_grad=False)
    call(weight, torch.ones(3))
    kept, weight.data = weight.data, torch.zeros(2)
    assert call(weight, torch.ones(3)) == (2, 0.0)
    weight.data = kept
    assert call(weight, torch.ones(3))[0] == 1
    weight.data = kept.as_strided((2,), (0,))  # where it was, with other strides
    assert call(weight, torch.ones(3))[0] == 3


def test_sets_of_weights_that_take_turns(looked: list[Any]) -> None:
    call, sets = graphed(), [torch.full((2,), float(at)) for at in range(MAX_SETS + 1)]
    for _ in range(3):
        for at, weight in enumerate(sets[:MAX_SETS]):
            assert call(weight, torch.ones(3)) == (at + 1, 2.0 * at)
    assert call(sets[-1], torch.ones(3))[0] == MAX_SETS + 1
    assert len(call._recorded) == MAX_SETS
    assert call(sets[0], torch.ones(3))[0] == MAX_SETS + 2, "it was let go"


def test_other_sizes_are_recorded_for_the_same_weights(looked: list[Any]) -> None:
    call, weight = graphed(), torch.ones(2)
    assert [call(weight, torch.ones(size))[0] for size in (3, 4, 3, 4)] == [1, 2, 1, 2]
    assert len(looked) == 1


def test_inference_tensors_are_looked_at_every_time(looked: list[Any]) -> None:
    with torch.inference_mode():
        weight = torch.ones(2)
    call = graphed()
    assert [call(weight, torch.ones(3))[0] for _ in range(3)] == [1, 1, 1]
    assert len(looked) == 3


def test_what_cannot_be_compared_is_looked_at(looked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class NoVersions:
        def is_of(self, tensors: Sequence[torch.Tensor]) -> bool:
            raise RuntimeError("Inference tensors do not track version counter.")

    monkeypatch.setattr(cuda_graphs, "TensorStates", lambda tensors: NoVersions())
    call, weight = graphed(), torch.ones(2)
    assert [call(weight, torch.ones(3))[0] for _ in range(3)] == [1, 1, 1]
    assert len(looked) == 3


def test_a_replay_waits_for_the_last_one_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """On whatever stream that was, also when that stream is gone; devices do not wait for each other."""
    told: list[tuple[Any, ...]] = []

    class Event:
        pass

    class Stream:
        def __init__(self, device: int) -> None:
            self.device, self.raw = device, current[device]

        def wait_event(self, event: Event) -> None:
            told.append(("waits", self.device, self.raw, events.index(event)))

    def made() -> Event:
        events.append(Event())
        return events[-1]

    def record(event: Event, stream: Stream) -> None:
        told.append(("done", stream.device, stream.raw, events.index(event)))

    events: list[Event] = []
    current = {0: 7, 1: 0}
    Event.record = record  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.cuda, "Event", made)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", current.__getitem__, raising=False)

    class Recorded:
        def __init__(self, device: int) -> None:
            self.device = device

        def __call__(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
            told.append(("runs", self.device))
            return ()

    call = GraphedCall(lambda: (), [])
    call._replay(Recorded(0), ())  # type: ignore[arg-type]
    call._replay(Recorded(1), ())  # type: ignore[arg-type]
    current[0] = 0
    call._replay(Recorded(0), ())  # type: ignore[arg-type]
    assert told == [
        *(("waits", 0, 7, 0), ("runs", 0), ("done", 0, 7, 0)),
        *(("waits", 1, 0, 1), ("runs", 1), ("done", 1, 0, 1)),
        *(("waits", 0, 0, 0), ("runs", 0), ("done", 0, 0, 0)),
    ]
