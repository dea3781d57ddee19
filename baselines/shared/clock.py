"""Spins of known length, timed as the judge times calls, next to busy neighbours; see `baselines.calls`."""

from __future__ import annotations

import subprocess
import sys
import time

import torch

from torchrlopt.judge.timing import sample_of

SPIN_MS = 1.0
#: A sample below this multiple of what was spun is too low.
TOO_LOW = 0.97


def spins(count: int, neighbours: int) -> list[float]:
    """Return what samples of spins say, as multiples of the processor time that was spun.

    Args:
        count: number of samples, on one thread.
        neighbours: number of processes that compute all the time.
    """
    torch.set_num_threads(1)
    spun: list[float] = []

    def spin() -> None:
        start = time.thread_time_ns()
        while (ns := time.thread_time_ns() - start) < SPIN_MS * 1e6:
            pass
        spun.append(ns / 1e6)

    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(neighbours)]
    try:
        samples = [sample_of(spin, tuple, 1, cuda=False) for _ in range(count)]
    finally:
        for each in busy:
            each.kill()
            each.wait()
    return [sample.ms / ms for sample, ms in zip(samples, spun, strict=True)]
