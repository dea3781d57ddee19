"""Records calls of several candidates for a model, next to each other; see `baselines.traffic`."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

import torchrlopt
from baselines.models import build

#: What may run a call, by the options of `optimise`; None is the model itself.
CANDIDATES: Mapping[str, Mapping[str, Any] | None] = {
    "original": None,
    "eager": {"executor": "eager"},
    "eager, no plan": {"executor": "eager", "searcher": "none"},
    "onnxruntime": {"executor": "onnxruntime"},
    "openvino": {"executor": "openvino"},
}
#: Programs that disturb the process whose id is their argument. The neighbour computes for a second in the
#: mean, on one core or two, and sleeps for as long; the quota is that of a control group, 60 of 100 ms.
CONDITIONS: Mapping[str, str] = {
    "quiet": "",
    "neighbour": """
import random, time, torch
draw, a = random.Random(5), torch.randn(500, 500)
while True:
    torch.set_num_threads(draw.choice([1, 2]))
    end = time.time() + draw.expovariate(1)
    while time.time() < end:
        a @ a
    time.sleep(draw.expovariate(1))
""",
    "quota": """
import os, signal, sys, time
while True:
    time.sleep(0.06)
    os.kill(int(sys.argv[1]), signal.SIGSTOP)
    time.sleep(0.04)
    os.kill(int(sys.argv[1]), signal.SIGCONT)
""",
}
_LEAST_ROUNDS = 30


class RecordedCalls:
    """The candidates for a model of the suite."""

    @torch.no_grad()
    def __init__(self, folder: str, model: str, batch: int, threads: int) -> None:
        torch.set_num_threads(threads)
        made, self._inputs = build(model, batch)
        self._calls: dict[str, Callable[..., Any]] = {}
        for name, options in CANDIDATES.items():
            if options is None:
                self._calls[name] = made
                continue
            # Whatever its gain: what is chosen is the question.
            kept: dict[str, Any] = {"measure": False, "min_gain": -10.0, "on_error": "raise", **options}
            with contextlib.suppress(torchrlopt.RlOptError):  # an executor that does not take the model
                self._calls[name] = torchrlopt.optimise(made, self._inputs, **kept)

    @torch.no_grad()
    def record(self, condition: str, seconds: float) -> dict[str, Any]:
        """Call all candidates in rounds, in random order, each twice.

        Args:
            condition: a key of `CONDITIONS`.
            seconds: how long, at least.

        Returns:
            at: when each round began, in seconds; and for each candidate the milliseconds of its first call
            in each round, behind another candidate's, and of the second.
        """
        draw, at = random.Random(0), []
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in self._calls}
        with _disturbed(condition):
            begin = time.perf_counter()
            while time.perf_counter() - begin < seconds or len(at) < _LEAST_ROUNDS:
                at.append(time.perf_counter() - begin)
                for name in draw.sample(list(self._calls), len(self._calls)):
                    times[name].append((self._ms(name), self._ms(name)))
        return {"at": at, "times": times}

    def _ms(self, name: str) -> float:
        start = time.perf_counter_ns()
        self._calls[name](*self._inputs)
        return (time.perf_counter_ns() - start) / 1e6


@contextlib.contextmanager
def _disturbed(condition: str) -> Iterator[None]:
    code = CONDITIONS[condition]
    if not code:
        yield
        return
    other = subprocess.Popen([sys.executable, "-c", code, str(os.getpid())])
    try:
        time.sleep(2.0)  # it imports
        yield
    finally:
        other.terminate()  # of a process that stops this one: only between two signals
        other.wait()
