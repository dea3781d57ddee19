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
