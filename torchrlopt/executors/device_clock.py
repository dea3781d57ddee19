"""A clock that is read when a device has finished what it was told to do.

A call that runs on a GPU returns as soon as it is launched. A reading of the plain clock behind it would tell
what the launch took, so the clock of a CUDA device waits for the device first.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

Clock = Callable[[], int]
"""Returns nanoseconds since some moment in the past."""


def clock_of(device: torch.device) -> Clock:
    """The clock for calls that run on this device.

    Args:
        device: where the tensors of the calls are.
    """
    if device.type != "cuda":
        return time.perf_counter_ns

    def synchronised_clock() -> int:
        torch.cuda.synchronize(device)
        return time.perf_counter_ns()

    return synchronised_clock
