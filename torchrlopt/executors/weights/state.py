"""Records the state of a set of weights, and checks whether it is unchanged.

PyTorch counts writes to a tensor in its version counter, which views and `detach()` share. Writes through
another tensor over the same memory that is not a view (`.data`, numpy, another process) are not counted.
Weights in memory where such writes are likely are compared with copies. For other weights a few words are
compared: a write to the whole weight, such as merging adapters into it, changes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from torchrlopt import _C
from torchrlopt.errors import WeightsError
from torchrlopt.torch_private.tensors import base_of, storage_key, version_of

_WORD = 4  # bytes
_NUM_WORDS = 4  # per weight

# Integers of each size: unlike floats, they compare equal if and only if their bits are equal.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WeightsState:
    """Versions, addresses and strides of tensor objects, and copies of those that may change unnoticed.

    Args:
        weights: the objects; none is kept alive. Inference tensors have no version.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self._tensors = TensorStates(weights)
        self._copies = [
            (at, _bits(weight).clone()) for at, weight in enumerate(weights) if _changes_unseen(weight)
        ]
        self._words = _C.MemoryWords([address for weight in weights for address in _sampled(weight)])

    def is_of(self, weights: Sequence[torch.Tensor]) -> bool:
        """Whether these are the same objects, unchanged."""
        return (
            self._tensors.is_of(weights)
            and self._words.is_unchanged()  # safe to read: the addresses are unchanged
            and all(_is_copy(kept, weights[at]) for at, kept in self._copies)
        )


class TensorStates:
    """Identities, versions, addresses and layouts of tensors.

    Args:
        tensors: the objects; none is kept alive.

    Raises:
        RuntimeError: one of them is an inference tensor, which has no version.
        ValueError: one of them has a layout without strides; graphs with such tensors are left alone.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._versions = list(map(version_of, tensors))
        self._places = _C.TensorPlaces(tensors)

    def is_of(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these are the same objects, with the same versions and layouts, at the same addresses.

        Raises:
            RuntimeError: one of them is an inference tensor.
        """
        return self._places.is_of(tensors) and self._versions == list(map(version_of, tensors))


def storages_of(weights: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    """The storages of the weights, each once."""
    storages = (weight.untyped_storage() for weight in weights)
    return list({storage_key(storage): storage for storage in storages}.values())


def _changes_unseen(weight: torch.Tensor) -> bool:
    """Whether writes to the memory of a weight are likely that its version does not count.

    That is the case for memory shared with other processes, and for a part of a larger memory that the weight
    is not a view of: `vector_to_parameters` and optimisers with flat buffers place weights there, and write
    to the whole.
    """
    storage = weight.untyped_storage()
    whole = base_of(weight)
    is_part = storage.nbytes() != whole.nbytes
    return is_part or (weight.device.type == "cpu" and storage.is_shared())


def require_memory(weights: Iterable[torch.Tensor]) -> None:
    """Raise WeightsError if the memory of a weight has been freed, as sharded training does."""
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
    """The offset of a weight's last element from its first."""
    return sum((size - 1) * stride for size, stride in zip(weight.shape, weight.stride(), strict=True))


def _sampled(weight: torch.Tensor) -> list[int]:
    """Addresses of words spread over a weight's memory; empty if it is not on the CPU."""
    if weight.device.type != "cpu" or weight.layout is not torch.strided or weight.numel() == 0:
        return []
    itemsize = weight.itemsize
    last = _last_element(weight)
    end = (last + 1) * itemsize - _WORD
    if end < 0:
        return []
    elements = {last * part // (_NUM_WORDS - 1) for part in range(_NUM_WORDS)}
    # for wide elements, the half with the exponent
    offsets = (element * itemsize + max(itemsize - _WORD, 0) for element in elements)
    return [weight.data_ptr() + min(offset, end) for offset in offsets]


def _is_copy(kept: torch.Tensor, weight: torch.Tensor) -> bool:
    if weight.is_cuda and torch.cuda.is_current_stream_capturing():
        return True  # cannot compare while the caller records, and a recording never compares again
    return torch.equal(kept, _bits(weight))


def _bits(weight: torch.Tensor) -> torch.Tensor:
    """The memory of a weight as integers, with the same strides."""
    return weight.detach().view(_BITS.get(weight.itemsize, weight.dtype))
