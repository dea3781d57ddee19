"""What a set of weights was when something was computed from it, and whether it still is.

PyTorch counts the writes to a tensor in its version, which views and `detach()` share. Writes through another
tensor over the same memory that is no view (`.data`, numpy, another process) are not counted. Where weights
lie in memory of which such writes are to be expected, they are compared with copies. Of the others some words
are compared: a write to the whole weight, as when adapters are merged into it, changes them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence

import torch

from torchrlopt import _C
from torchrlopt.errors import WeightsError

_version_of = operator.attrgetter("_version")
_address_of = torch._C.TensorBase.data_ptr

_WORD = 4  # bytes
_NUM_WORDS = 4  # of each weight

# Integers of each size: unlike numbers, equal bits are always equal.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WeightsState:
    """Versions, addresses and strides of tensor objects, and copies of those that change unseen.

    Args:
        weights: the objects; none is kept alive. Inference tensors have no version.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self._tensors = tensor_states(weights)
        self._copies = [
            (at, _bits(weight).clone()) for at, weight in enumerate(weights) if _changes_unseen(weight)
        ]
        self._words = _C.MemoryWords([address for weight in weights for address in _sampled(weight)])

    @property
    def in_memory(self) -> tuple[_C.TensorStates, _C.MemoryWords] | None:
        """All of it, where C++ alone can say whether it is as it was; else None."""
        if self._copies or not isinstance(self._tensors, _C.TensorStates):
            return None
        return self._tensors, self._words

    def is_of(self, weights: Sequence[torch.Tensor]) -> bool:
        """Whether these are the same objects, and they are what they were."""
        return (
            self._tensors.is_of(weights)
            and self._words.is_unchanged()  # the memory is there: the addresses are what they were
            and all(_is_copy(kept, weights[at]) for at, kept in self._copies)
        )


class ListedStates:
    """What `_C.TensorStates` is, where this PyTorch cannot be read from C++.

    Args:
        tensors: the objects; none is kept alive.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._objects = list(map(id, tensors))
        self._versions = list(map(_version_of, tensors))
        self._addresses = list(map(_address_of, tensors))
        self._layouts = list(map(_layout, tensors))

    def is_of(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these are the same objects, in the same versions and strides, at the same addresses."""
        return (
            self._objects == list(map(id, tensors))
            and self._versions == list(map(_version_of, tensors))
            and self._addresses == list(map(_address_of, tensors))
            and self._layouts == list(map(_layout, tensors))
        )


def tensor_states(tensors: Sequence[torch.Tensor]) -> _C.TensorStates | ListedStates:
    """Objects, versions, addresses and strides of tensors, to be compared in nanoseconds each."""
    return _read_states(tensors) if _is_readable() else ListedStates(tensors)


def _read_states(tensors: Sequence[torch.Tensor]) -> _C.TensorStates:
    """Raises ValueError where C++ reads other numbers than Python."""
    return _C.TensorStates(
        tensors,
        [tensor._cdata for tensor in tensors],
        list(map(_version_of, tensors)),
        list(map(_address_of, tensors)),
        list(map(_layout, tensors)),
    )


def _layout(tensor: torch.Tensor) -> list[int]:
    """Sizes and strides; nothing for a layout that has none."""
    return [*tensor.shape, *tensor.stride()] if tensor.layout is torch.strided else []


@functools.cache
def _is_readable() -> bool:
    """Whether C++ sees in this PyTorch what has to be seen; tried once, on a tensor of our own."""
    with torch.inference_mode(False), torch.no_grad():
        tensor = torch.nn.Parameter(torch.zeros(2, 2))
        view, other = tensor.detach()[0], torch.zeros(2, 2)

        def assign() -> None:
            tensor.data = other

        def turn() -> None:
            tensor.data = tensor.data.t()

        for change in (functools.partial(tensor.add_, 1), functools.partial(view.add_, 1), assign, turn):
            try:
                states = _read_states([tensor])
            except ValueError:
                return False
            is_seen_unchanged = states.is_of([tensor])
            change()
            if not is_seen_unchanged or states.is_of([tensor]):
                return False
    return True


def storages_of(weights: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    """The storages that the weights lie in, each once."""
    storages = (weight.untyped_storage() for weight in weights)
    return list({storage._cdata: storage for storage in storages}.values())


def _changes_unseen(weight: torch.Tensor) -> bool:
    """Whether others are expected to write to the memory of a weight without its version telling.

    That is memory shared with other processes, and a part of a larger memory of which the weight is no view:
    `vector_to_parameters` and optimisers with flat buffers place weights there, and write to the whole.
    """
    storage = weight.untyped_storage()
    whole = weight if weight._base is None else weight._base
    is_part = storage.nbytes() != whole.nbytes
    return is_part or (weight.device.type == "cpu" and storage.is_shared())


def require_memory(weights: Iterable[torch.Tensor]) -> None:
    """Raise WeightsError where the memory of a weight has been taken away, as sharded training does."""
    for weight in weights:
        if weight.layout is not torch.strided or weight.numel() == 0:
            continue
        needed = (weight.storage_offset() + _last_element(weight) + 1) * weight.itemsize
        if weight.untyped_storage().nbytes() < needed:
            raise WeightsError(
                "a weight has no memory",
                expected=f"{needed} bytes",
                got=f"{weight.untyped_storage().nbytes()}",
                todo="gather the weights before the call",
            )


def _last_element(weight: torch.Tensor) -> int:
    """The place of the last element of a weight, counted from the first."""
    return sum((size - 1) * stride for size, stride in zip(weight.shape, weight.stride(), strict=True))


def _sampled(weight: torch.Tensor) -> list[int]:
    """Addresses of words of a weight, spread over its memory; none where it is on another device."""
    if weight.device.type != "cpu" or weight.layout is not torch.strided or weight.numel() == 0:
        return []
    itemsize = weight.itemsize
    last = _last_element(weight)
    end = (last + 1) * itemsize - _WORD
    if end < 0:
        return []
    elements = {last * part // (_NUM_WORDS - 1) for part in range(_NUM_WORDS)}
    # of wide elements the half with the exponent
    offsets = (element * itemsize + max(itemsize - _WORD, 0) for element in elements)
    return [weight.data_ptr() + min(offset, end) for offset in offsets]


def _is_copy(kept: torch.Tensor, weight: torch.Tensor) -> bool:
    if weight.is_cuda and torch.cuda.is_current_stream_capturing():
        return True  # one cannot look while the caller records, and a recording never looks again
    return torch.equal(kept, _bits(weight))


def _bits(weight: torch.Tensor) -> torch.Tensor:
    """The memory of a weight as integers, strides and all."""
    return weight.detach().view(_BITS.get(weight.itemsize, weight.dtype))
