"""Copies outputs whose memory an executor keeps, because the caller may write to its outputs.

A compiler that finds an output to be the same in every call returns the tensor it has computed once.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Collection, Sequence
from typing import Any

import torch

from torchrlopt.torch_private.tensors import storage_key

aten = torch.ops.aten


class Memory:
    """Tracks the memory of outputs without keeping it alive.

    Args:
        outputs: of a call.
        arguments: of the call. Memory shared with one of them belongs to the caller.
    """

    def __init__(self, outputs: Sequence[Any], arguments: Sequence[Any]) -> None:
        given = {storage_key(storage) for storage in map(_storage, arguments) if storage is not None}
        self._storages = [
            weakref.ref(storage)
            if (storage := _storage(output)) is not None and storage_key(storage) not in given
            else None
            for output in outputs
        ]

    def kept(self) -> tuple[int, ...]:
        """Positions of the outputs whose memory is still alive, once nobody else should hold it."""
        return tuple(
            at for at, storage in enumerate(self._storages) if storage is not None and storage() is not None
        )


def with_copies(outputs: Sequence[Any], kept: Collection[int]) -> tuple[Any, ...]:
    """The outputs, some of them replaced by copies.

    Copies have the strides of the originals and share memory if the originals do.

    Args:
        outputs: tensors and other values.
        kept: positions of the outputs to copy, which are tensors.
    """
    storages = {at: outputs[at].untyped_storage() for at in kept}
    users = collections.Counter(storage_key(storage) for storage in storages.values())
    memory: dict[int, torch.UntypedStorage] = {}
    copies: dict[int, torch.Tensor] = {}  # an output that is returned twice is one tensor
    owned = list(outputs)
    for at, storage in storages.items():
        output = outputs[at]
        if id(output) not in copies:
            if users[storage_key(storage)] == 1 and aten.is_non_overlapping_and_dense.default(output):
                copies[id(output)] = output.clone()
            else:
                own = memory.get(storage_key(storage))
                own = memory[storage_key(storage)] = storage.clone() if own is None else own
                place = output.storage_offset(), output.shape, output.stride()
                copies[id(output)] = output.new_empty(0).set_(own, *place)
        owned[at] = copies[id(output)]
    return tuple(owned)


def _storage(value: Any) -> torch.UntypedStorage | None:
    """The storage of a tensor; None if the value is not a tensor or has no single storage."""
    is_strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return value.untyped_storage() if is_strided else None
