"""The worker's side of collection: results depend only on (state, key).

Each worker receives a task once and creates a player from it. Before each collection the player loads the
complete state (weights and buffers, as bytes); then it plays keys. It carries no random numbers and no
episode over from one key to the next, so any worker may play any key, and a lost key is simply played again.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn


class Player(Protocol):
    """Plays the episodes of keys; used by one thread only."""

    def load(self, state: bytes) -> None:
        """Load a state, replacing the previous one completely."""
        ...

    def play(self, key: Any) -> Any:
        """Collect the data of a key. The result depends only on the key and the loaded state."""
        ...


Task = Callable[[], Player]
"""Creates the player of one worker. Must be picklable, because it is sent to other processes."""


class Worker:
    """One worker, wherever it runs; it computes on one thread.

    Args:
        task: what it does.
    """

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(1)
        self._player = task()

    def load(self, state: bytes) -> None:
        """See `Player`."""
        self._player.load(state)

    def play(self, keys: Sequence[Any]) -> bytes:
        """Play some keys and return the `packed` results in their order; call `load` first."""
        return packed([self._player.play(key) for key in keys])


class _Packer(pickle.Pickler):
    """Pickles tensors as arrays: many times faster than torch's own way, which opens a file per tensor."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor:
            return _tensor, (value.detach().contiguous().numpy(),)
        return NotImplemented


def _tensor(array: np.ndarray) -> Tensor:
    # The copy has torch's memory alignment; with another alignment, sums may round differently.
    return torch.from_numpy(array).clone()


def packed(results: Any) -> bytes:
    """Serialise results to bytes.

    A worker does this even within the learner's process, so that the learner reads tensors with the same
    strides and alignment wherever they come from.
    """
    memory = io.BytesIO()
    _Packer(memory, protocol=5).dump(results)
    return memory.getvalue()


def state_of(module: nn.Module) -> bytes:
    """Weights and buffers as bytes, for `Player.load`."""
    return packed(dict(module.state_dict()))


def state_from(state: bytes) -> dict[str, Tensor]:
    """The inverse of `state_of`."""
    return dict(unpacked(state))


def unpacked(results: bytes) -> Any:
    """The inverse of `packed`. Unpickles, so use it only on bytes from our own workers."""
    return pickle.loads(results)
