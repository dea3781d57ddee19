"""What a set of weights was: objects, versions and addresses, read in C++ or listed by Python."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pytest
import torch

from torchrlopt import _C
from torchrlopt.executors.weights import state
from torchrlopt.executors.weights.state import ListedStates, WeightsState, tensor_states


class _States(Protocol):
    def is_of(self, tensors: Sequence[torch.Tensor]) -> bool: ...


Make = Callable[[Sequence[torch.Tensor]], _States]
KINDS = pytest.mark.parametrize("make", [tensor_states, ListedStates], ids=["read", "listed"])


def _tensors(count: int = 3) -> list[torch.Tensor]:
    return [torch.nn.Parameter(torch.randn(4, 4)) for _ in range(count)]


def test_this_pytorch_is_read_in_cpp() -> None:
    assert isinstance(tensor_states(_tensors()), _C.TensorStates)


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


@KINDS
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("which", [0, 2])
def test_changes_of_any_tensor_are_seen(make: Make, change: Callable[[Any], None], which: int) -> None:
    tensors = _tensors()
    states = make(tensors)
    assert states.is_of(tensors)
    assert states.is_of(tuple(tensors)), "in whichever sequence they come"
    change(tensors[which])
    assert not states.is_of(tensors)
    assert make(tensors).is_of(tensors)


@KINDS
def test_other_objects_are_others_also_over_the_same_memory(make: Make) -> None:
    tensors = _tensors()
    states = make(tensors)
    twin = torch.nn.Parameter(tensors[1].data)
    assert twin.data_ptr() == tensors[1].data_ptr()
    assert twin._version == tensors[1]._version
    assert not states.is_of([tensors[0], twin, tensors[2]])
    assert not states.is_of(tensors[::-1])
    assert not states.is_of(tensors[:2])
    assert not states.is_of([*tensors, tensors[0]])
    assert states.is_of(tensors)


@KINDS
def test_tensors_that_have_swapped_what_they_hold(make: Make) -> None:
    tensors = _tensors()
    states = make(tensors)
    torch.utils.swap_tensors(tensors[0], tensors[1])
    assert not states.is_of(tensors)


@KINDS
def test_none_is_kept_alive(make: Make) -> None:
    tensors = _tensors(1)
    states = make(tensors)
    weight = weakref.ref(tensors.pop())
    assert weight() is None
    assert not states.is_of(tensors)


@KINDS
def test_no_tensors(make: Make) -> None:
    assert make([]).is_of(())
    assert not make([]).is_of(_tensors(1))


@pytest.mark.parametrize("wrong", ["_cdata", "_version", "data_ptr", "layout"])
def test_a_pytorch_that_says_something_else_is_not_read(wrong: str) -> None:
    tensors = _tensors(2)
    facts: dict[str, list[Any]] = {
        "_cdata": [tensor._cdata for tensor in tensors],
        "_version": [tensor._version for tensor in tensors],
        "data_ptr": [tensor.data_ptr() for tensor in tensors],
        "layout": [[*tensor.shape, *tensor.stride()] for tensor in tensors],
    }
    assert _C.TensorStates(tensors, *facts.values()).is_of(tensors)
    facts[wrong][1] += [8, 8] if wrong == "layout" else 8
    with pytest.raises(ValueError, match="cannot be read"):
        _C.TensorStates(tensors, *facts.values())
    with pytest.raises(ValueError, match="for each tensor"):
        _C.TensorStates(tensors, *(fact[:1] for fact in facts.values()))


def test_where_nothing_can_be_read_python_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("this PyTorch cannot be read from C++")

    monkeypatch.setattr(_C, "TensorStates", refuse)
    state._is_readable.cache_clear()
    try:
        assert isinstance(tensor_states(_tensors()), ListedStates)
        weights = _tensors()
        known = WeightsState(weights)
        assert known.is_of(weights)
        _write(weights[1])
        assert not known.is_of(weights)
    finally:
        state._is_readable.cache_clear()


def test_a_reading_that_misses_a_change_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind:
        def __init__(self, *_: Any) -> None:
            pass

        def is_of(self, _: Any) -> bool:
            return True

    monkeypatch.setattr(_C, "TensorStates", Blind)
    state._is_readable.cache_clear()
    try:
        assert isinstance(tensor_states(_tensors()), ListedStates)
    finally:
        state._is_readable.cache_clear()
