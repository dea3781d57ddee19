"""State of a set of weights: objects, versions and addresses."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchrlopt.executors.weights.state import TensorStates


def _tensors(count: int = 3) -> list[torch.Tensor]:
    return [torch.nn.Parameter(torch.randn(4, 4)) for _ in range(count)]


def test_what_has_no_strides_is_refused() -> None:
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(ValueError, match="without plain memory"):
        TensorStates([sparse])


def _write(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.add_(1.0)


def _write_through_view(tensor: torch.Tensor) -> None:
    tensor.detach()[0].fill_(3.0)


def _assign_data(tensor: torch.Tensor) -> None:
    tensor.data = torch.randn(4, 4)


def _assign_part(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data[1:]


def _turn(tensor: torch.Tensor) -> None:
    """Neither the version nor the address tells of it."""
    tensor.data = tensor.data.t()


def _reshape(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.reshape(2, 8)


def _flatten(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.reshape(16)


def _set(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.set_(torch.randn(4, 4))


CHANGES = [
    _write, _write_through_view, _assign_data, _assign_part, _turn, _reshape, _flatten, _set,
    torch.autograd.graph.increment_version,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("which", [0, 2])
def test_changes_of_any_tensor_are_seen(change: Callable[[Any], None], which: int) -> None:
    tensors = _tensors()
    states = TensorStates(tensors)
    assert states.is_of(tensors)
    assert states.is_of(tuple(tensors)), "in whichever sequence they come"
    change(tensors[which])
    assert not states.is_of(tensors)
    assert TensorStates(tensors).is_of(tensors)


def test_other_objects_are_others_also_over_the_same_memory() -> None:
    tensors = _tensors()
    states = TensorStates(tensors)
    twin = torch.nn.Parameter(tensors[1].data)
    assert twin.data_ptr() == tensors[1].data_ptr()
    assert twin._version == tensors[1]._version
    assert not states.is_of([tensors[0], twin, tensors[2]])
    assert not states.is_of(tensors[::-1])
    assert not states.is_of(tensors[:2])
    assert not states.is_of([*tensors, tensors[0]])
    assert states.is_of(tensors)


def test_tensors_that_have_swapped_what_they_hold() -> None:
    tensors = _tensors()
    states = TensorStates(tensors)
    torch.utils.swap_tensors(tensors[0], tensors[1])
    assert not states.is_of(tensors)


def test_none_is_kept_alive() -> None:
    tensors = _tensors(1)
    states = TensorStates(tensors)
    weight = weakref.ref(tensors.pop())
    assert weight() is None
    assert not states.is_of(tensors)
