"""A clock that waits for a device before it is read.

A call that runs on a GPU returns as soon as it is launched, so a plain clock would measure only the launch.
The clock of a CUDA device synchronises first.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

Clock = Callable[[], int]
"""Returns nanoseconds since an arbitrary moment in the past."""


def clock_of(device: torch.device) -> Clock:
    """Return the clock for calls that run on this device.

    Args:
        device: where the tensors of the calls are.
    """
    if device.type != "cuda":
        return time.perf_counter_ns

    def synchronised_clock() -> int:
        torch.cuda.synchronize(device)
        return time.perf_counter_ns()

    return synchronised_clock
