"""What the process of a peer asks of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


class Peer(Protocol):
    """A model made ready by one peer."""

    def first_call(self) -> float:
        """Compiles and runs once; returns the seconds from the model in hand to its first result."""

    def kept(self) -> str:
        """What runs after the first call, where the peer had a choice; else empty."""

    def call(self) -> Any:
        """Runs the model once."""

    def call_ms(self) -> float:
        """Runs the model once; returns the milliseconds that took."""

    def outputs(self) -> list[np.ndarray]:
        """Runs once and returns the outputs, flat."""

    def reference_outputs(self) -> list[np.ndarray]:
        """The outputs of the unchanged model in float64; the peer must not be called afterwards."""


def wall_ms(call: Callable[[], Any]) -> float:
    """Milliseconds of one call on the wall clock."""
    before = time.perf_counter()
    call()
    return (time.perf_counter() - before) * 1e3
