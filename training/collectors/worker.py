"""The contract of collection, from the side of a worker: what it plays depends on (state, key) only.

A task is sent to a worker once, which makes a player of it. Before each collection the player is given the
whole state of what plays (weights and buffers, as bytes); then it is given keys. It keeps no random numbers
and no episode from one key to the next, so that who plays a key changes nothing, and a key that was lost is
simply played again.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn


class Player(Protocol):
    """Plays the episodes of keys; only one thread uses it."""

    def load(self, state: bytes) -> None:
        """Play with this state from now on; nothing is left of the one before."""
        ...

    def play(self, key: Any) -> Any:
        """What is collected under a key; it depends on the key and the state that was loaded only."""
        ...


class Task(Protocol):
    """What workers do. It travels to other processes, so `pickle` must take it."""

    def player(self) -> Player:
        """A player for one worker. In one process, players are not made nor loaded at the same time."""
        ...


class Worker:
    """One worker, wherever it runs; it computes on one thread.

    Args:
        task: what it does.
    """

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(1)
        self._player = task.player()

    def load(self, state: bytes) -> None:
        """See `Player`."""
        self._player.load(state)

    def play(self, keys: Sequence[Any]) -> bytes:
        """The results of some keys, in their order, `packed`; `load` has to come first."""
        return packed([self._player.play(key) for key in keys])


class _Packer(pickle.Pickler):
    """Writes tensors as arrays: many times faster than torch's own way, which opens a file for each."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor:
            return _tensor, (value.detach().contiguous().numpy(),)
        return NotImplemented


def _tensor(array: np.ndarray) -> Tensor:
    # A copy lies where torch aligns its memory; sums over memory that lies otherwise may round otherwise.
    return torch.from_numpy(array).clone()


def packed(results: Any) -> bytes:
    """Results as bytes.

    All kinds of workers hand them over so, also where no process is between: the learner then reads tensors
    with the same strides and alignment, whoever made them.
    """
    memory = io.BytesIO()
    _Packer(memory, protocol=5).dump(results)
    return memory.getvalue()


def state_of(module: nn.Module) -> bytes:
    """Weights and buffers, for `Player.load`."""
    return packed(dict(module.state_dict()))


def state_from(state: bytes) -> dict[str, Tensor]:
    """The inverse of `state_of`."""
    return dict(unpacked(state))


def unpacked(results: bytes) -> Any:
    """The inverse of `packed`, for bytes of our own workers only."""
    return pickle.loads(results)
