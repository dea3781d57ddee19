"""What the process of a peer asks of it."""

from __future__ import annotations

import abc
import time
from typing import Any

import numpy as np


class Peer(abc.ABC):
    """A model made ready by one peer."""

    def first_call(self) -> float:
        """Compiles and runs once; returns the seconds from the model in hand to its first result."""
        start = time.perf_counter()
        self.call()
        return time.perf_counter() - start

    def kept(self) -> str:
        """What runs after the first call, where the peer had a choice; else empty."""
        return ""

    @abc.abstractmethod
    def call(self) -> Any:
        """Runs the model once."""

    def call_ms(self) -> float:
        """Runs the model once; returns the milliseconds that took."""
        before = time.perf_counter()
        self.call()
        return (time.perf_counter() - before) * 1e3

    @abc.abstractmethod
    def outputs(self) -> list[np.ndarray]:
        """Runs once and returns the outputs, flat."""

    def reference_outputs(self) -> list[np.ndarray]:
        """The outputs of the unchanged model in float64; the peer must not be called afterwards."""
        raise NotImplementedError("the float64 reference is eager PyTorch's: ask the peer 'eager'")
