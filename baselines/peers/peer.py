"""Interface of a peer in its process."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Peer(abc.ABC):
    """A model prepared by one peer."""

    def first_call(self) -> float:
        """Compile and run once; returns the seconds from the built model to its first result."""
        start = time.perf_counter()
        self.call()
        return time.perf_counter() - start

    def kept(self) -> str:
        """What runs after the first call if the peer had a choice; otherwise empty."""
        return ""

    @abc.abstractmethod
    def call(self) -> Any:
        """Run the model once."""

    def caller(self) -> Callable[[], Any]:
        """A function that runs the model once, for one of several threads."""
        return self.call

    def call_ms(self) -> float:
        """Run the model once; returns the milliseconds that it took."""
        before = time.perf_counter()
        self.call()
        return (time.perf_counter() - before) * 1e3

    @abc.abstractmethod
    def outputs(self) -> list[np.ndarray]:
        """Run once and return the outputs, flat."""

    @abc.abstractmethod
    def answer(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run once on other inputs of the same shapes and return the outputs, flat."""

    def reference_outputs(self) -> list[np.ndarray]:
        """The outputs of the unchanged model in float64; the peer must not be called afterwards."""
        raise NotImplementedError("the float64 reference is eager PyTorch's: ask the peer 'eager'")
