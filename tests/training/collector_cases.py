"""A collector task that needs no graphs, in a module that other processes can import."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import torch

from training.collectors.data_hash import data_hash
from training.random_keys import generator

DEADLY = 3  # the key in which a worker dies


class OfTaskError(Exception):
    """What the task raises on purpose."""


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Products of the state with numbers that a key draws.

    Attributes:
        death: a file; while it is not there, the worker that plays `DEADLY` makes it and is killed.
        always: whether it is killed even so.
    """

    death: Path | None = None
    always: bool = False

    def __call__(self) -> NumbersPlayer:
        return NumbersPlayer(self)


class NumbersPlayer:
    def __init__(self, task: Numbers) -> None:
        self._task = task
        self._weights = torch.zeros(0)

    def load(self, state: bytes) -> None:
        self._weights = torch.tensor(list(state), dtype=torch.float32)

    def play(self, key: int) -> dict[str, Any]:
        if key < 0:
            raise OfTaskError(key)
        task = self._task
        if task.death is not None and key == DEADLY and (task.always or not task.death.exists()):
            task.death.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        drawn = torch.from_numpy(generator(7, key).random((64, len(self._weights)), dtype="float32"))
        return {"key": key, "product": drawn @ self._weights, "turned": drawn.T[:3]}


@dataclasses.dataclass(frozen=True)
class NoPlayer:
    """A task whose worker cannot begin: it raises, or it is killed as soon as it has a state.

    Attributes:
        is_killed: which of both.
    """

    is_killed: bool

    def __call__(self) -> NumbersPlayer:
        if not self.is_killed:
            raise OfTaskError("no player")
        return KilledPlayer(Numbers())


class KilledPlayer(NumbersPlayer):
    def load(self, state: bytes) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


KEYS = [5, 0, DEADLY, 9, 1, 2, 7]
STATE = bytes(range(40))


def expected() -> str:
    """The hash of what the keys give in one process."""
    player = Numbers()()
    player.load(STATE)
    return data_hash([player.play(key) for key in KEYS])
