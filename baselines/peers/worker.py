"""The comparison's commands to a peer, in the peer's process; see `baselines.shared.worker`."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from baselines.peers.case import Case
from baselines.peers.kernel_times import kernel_times
from baselines.peers.registry import make_peer
from baselines.shared.arrays import load_calls, save_calls
from baselines.shared.memory import peak_mb

#: Rest before a round: the previous peer's threads may spin for about 20 ms before they sleep.
_REST_S = 0.05
#: Warm-up calls before the clock starts, because the other peers have just evicted the caches.
_NUM_WARM_UP = 2
#: Minimum and maximum number of timed calls in a round.
_MIN_CALLS, _MAX_CALLS = 3, 200


def time_round(call_ms: Callable[[], float], seconds: float) -> list[float]:
    """Time calls one by one until `seconds` have passed; returns milliseconds of each."""
    time.sleep(_REST_S)
    for _ in range(_NUM_WARM_UP):
        call_ms()
    gc.collect()
    gc.disable()
    times_ms: list[float] = []
    start = time.perf_counter()
    now = start
    while len(times_ms) < _MIN_CALLS or (now - start < seconds and len(times_ms) < _MAX_CALLS):
        times_ms.append(call_ms())
        now = time.perf_counter()
    gc.enable()
    return times_ms


class Subject:
    """One peer on one model.

    Args:
        folder: for its outputs, which are too large for a reply.
        **case: the fields of a `Case`.
    """

    def __init__(self, folder: str, **case: Any) -> None:
        self._case, self._folder = Case(**case), Path(folder)
        self._peer = make_peer(self._case, folder)

    def prepare(self) -> dict[str, Any]:
        """Compile and run once; write the outputs to `outputs.npz`."""
        first_call_s = self._peer.first_call()
        np.savez(self._folder / "outputs.npz", *self._peer.outputs())
        return {"first_call_s": first_call_s, "kept": self._peer.kept()}

    def time(self, seconds: float) -> tuple[list[float], float]:
        """Milliseconds of each call of a round, and those of the processor of one, in all its threads."""
        spent: list[float] = []

        def call_ms() -> float:
            before = time.process_time()
            ms = self._peer.call_ms()
            spent.append((time.process_time() - before) * 1e3)
            return ms

        times_ms = time_round(call_ms, seconds)
        return times_ms, statistics.median(spent[_NUM_WARM_UP:])

    def rate(self, seconds: float) -> float:
        """Calls per second, of all callers of the case together."""
        time.sleep(_REST_S)
        counts = [0] * self._case.callers
        start = threading.Barrier(1 + len(counts), timeout=60)  # for callers that fail
        is_over = threading.Event()

        def repeat(number: int) -> None:
            call = self._peer.caller()
            for _ in range(_NUM_WARM_UP):
                call()
            start.wait()
            while not is_over.is_set():
                call()
                counts[number] += 1

        with ThreadPoolExecutor(len(counts)) as pool:
            done = [pool.submit(repeat, number) for number in range(len(counts))]
            start.wait()
            began = time.perf_counter()
            time.sleep(seconds)
            total, took = sum(counts), time.perf_counter() - began
            is_over.set()
            for each in done:
                each.result()
        return total / took

    def peak(self) -> float:
        """Peak memory of the process, or of the CUDA device, in MB of 10^6 bytes."""
        if self._case.device == "cpu":
            return peak_mb()
        import torch

        return float(torch.cuda.max_memory_reserved() / 1e6)

    def kernels(self) -> list[tuple[str, int, float, float]]:
        """The kernels of a call on a CUDA device; none if calls differ."""
        try:
            return kernel_times(self._peer.call)
        except ValueError:
            return []

    def answer(self, inputs: str) -> None:
        """Write the outputs for each call in the file `inputs` to `answers.npz`."""
        answers = [self._peer.answer(call) for call in load_calls(Path(inputs))]
        save_calls(self._folder / "answers.npz", answers)

    def reference(self) -> None:
        """Write the float64 outputs to `reference.npz`; no other command may follow."""
        np.savez(self._folder / "reference.npz", *self._peer.reference_outputs())
