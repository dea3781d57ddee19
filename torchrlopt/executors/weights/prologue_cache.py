"""Keeps the results of a weight prologue for each set of weights, and checks at every call if they are valid.

Results are valid as long as every weight is the same memory in the same version. The quick check compares
identity, version counter and address of the tensor objects. Weak references to the objects and to their
storages end its validity when one of them dies, so a new tensor at an old address is never taken for the old
weight.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

MAX_SETS = 4
"""Sets of weights whose results are kept: instances of one class that take turns."""

_version_of = operator.attrgetter("_version")
_address_of = torch._C.TensorBase.data_ptr
_Key = tuple[Any, ...]


class _Entry:
    """The results of the prologue for one set of weights.

    Attributes:
        values: the prologue's results; None once a storage has died.
        key: what the weights were: storages, addresses, versions, shapes.
        ids, versions, addresses: the quick check; `ids` is None once a tensor object has died.
    """

    def __init__(self, weights: Sequence[torch.Tensor], key: _Key, values: tuple[Any, ...]) -> None:
        self.values: tuple[Any, ...] | None = values
        self.key = key
        self._references: list[weakref.ref[Any]] = []
        storages = {weight.untyped_storage()._cdata: weight.untyped_storage() for weight in weights}
        for storage in storages.values():
            self._references.append(weakref.ref(storage, self._drop))
        # A result that is a view of a weight would keep a dead model's weights alive.
        holds_views = any(_storage_of(value) in storages for value in values)
        self._forget_object = self._drop if holds_views else self._forget
        self.remember(weights)

    def remember(self, weights: Sequence[torch.Tensor]) -> None:
        """Make the quick check succeed for these tensor objects."""
        self.ids: list[int] | None = list(map(id, weights))
        self.versions = list(map(_version_of, weights))
        self.addresses = list(map(_address_of, weights))
        self._objects = [weakref.ref(weight, self._forget_object) for weight in weights]

    def is_for(self, weights: Sequence[torch.Tensor]) -> bool:
        """Whether these are, unchanged, the tensor objects last seen."""
        return (
            self.ids == list(map(id, weights))
            and self.versions == list(map(_version_of, weights))
            and self.addresses == list(map(_address_of, weights))
        )

    def _drop(self, _: object) -> None:
        self.values = None
        self.ids = None

    def _forget(self, _: object) -> None:
        self.ids = None


class PrologueCache:
    """Calls a prologue only when a weight has changed.

    Args:
        compute: the prologue: takes the weights, returns the tuple of results.
        policy: "check" looks at the weights at every call, "live" computes at every call, "frozen" once.
    """

    def __init__(
        self, compute: Callable[..., tuple[Any, ...]], policy: Literal["check", "live", "frozen"]
    ) -> None:
        self._compute = compute
        self._policy = policy
        self._entries: list[_Entry] = []
        self._frozen: tuple[Any, ...] | None = None
        self._lock = threading.Lock()

    def get(self, weights: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """The prologue's results for these weights."""
        if self._policy == "frozen" or not weights:
            if self._frozen is None:
                self._frozen = self._run(weights)
            return self._frozen
        if self._policy == "live":
            return self._run(weights)
        try:
            for entry in self._entries:
                values = entry.values
                if entry.is_for(weights) and values is not None:
                    return values
        except RuntimeError:
            # Inference tensors have no version: a change could not be seen, so nothing is kept.
            return self._run(weights)
        return self._look_closer(weights)

    def _look_closer(self, weights: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Look a set of weights up that the quick check does not know, by the memory of its tensors."""
        if any(weight.is_inference() for weight in weights):
            return self._run(weights)
        key = _key(weights)
        with self._lock:
            self._entries = [entry for entry in self._entries if entry.values is not None]
            for entry in self._entries:
                values = entry.values
                if entry.key == key and values is not None:
                    entry.remember(weights)
                    return values
        values = self._run(weights)
        with self._lock:
            # The same objects held other values before; nobody will ask for the results of those again.
            ids = list(map(id, weights))
            kept = [entry for entry in self._entries if entry.ids != ids]
            self._entries = [_Entry(weights, key, values), *kept][:MAX_SETS]
        return values

    def _run(self, weights: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        # Results outlive the call: they must be plain tensors even when the caller is in inference mode.
        # A view keeps the tensor object it was made of alive: it must not be the user's parameter.
        with torch.inference_mode(False), torch.no_grad():
            return tuple(self._compute(*[weight.detach() for weight in weights]))


def _storage_of(value: Any) -> int | None:
    """Identity of a tensor's storage; None for what has none (packed weights, numbers)."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return int(value.untyped_storage()._cdata)


def _key(weights: Sequence[torch.Tensor]) -> _Key:
    return tuple(
        (
            weight.untyped_storage()._cdata,
            weight.data_ptr(),
            weight._version,
            weight.dtype,
            weight.shape,
            weight.stride(),
        )
        for weight in weights
    )
