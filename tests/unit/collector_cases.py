"""A task for collectors that needs no graphs, in a module that other processes can import."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from training.episodes.random_keys import generator

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

    def load(self, state: bytes) -> Callable[[int], dict[str, Any]]:
        weights = torch.tensor(list(state), dtype=torch.float32)

        def play(key: int) -> dict[str, Any]:
            if key < 0:
                raise OfTaskError(key)
            if self.death is not None and key == DEADLY and (self.always or not self.death.exists()):
                self.death.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            drawn = torch.from_numpy(generator(7, key).random((64, len(state)), dtype="float32"))
            return {"key": key, "product": drawn @ weights, "turned": drawn.T[:3]}

        return play
