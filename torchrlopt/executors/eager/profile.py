"""Times the calls of a lowered eager graph one by one, next to the whole graph."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from torchrlopt.errors import UnsupportedError
from torchrlopt.executors.eager.executor import EagerCallable
from torchrlopt.executors.eager.inventory import name_of
from torchrlopt.executors.eager.stamps import Stamped

_LEAST, _MOST = 7, 41  # rounds


class Timed(NamedTuple):
    """The times of a graph.

    Attributes:
        call_ms: of the whole, in milliseconds.
        calls: name, ONNX nodes and time in microseconds of each call, in order.
        num_rounds: whose lower quartiles these are: noise of other processes only adds time.
    """

    call_ms: float
    calls: list[tuple[str, tuple[str, ...], float]]
    num_rounds: int


def profile(run: EagerCallable, inputs: Callable[[], Sequence[Any]], limit_ms: float) -> Timed:
    """Time the calls one by one, in alternation with the whole graph, which may group some into sequences.

    Args:
        run: the graph.
        inputs: makes the inputs of one call.
        limit_ms: wall-clock limit in milliseconds, checked between rounds; at least seven rounds are run.

    Raises:
        UnsupportedError: the graph runs on CUDA, where calls overlap, or the inputs are not finite.
    """
    if any(isinstance(x, torch.Tensor) and x.is_cuda for x in inputs()):
        raise UnsupportedError("calls on CUDA overlap: a profiler of CUDA times them")
    # A single thread's processor time leaves out its waits for a processor; several wait for each other.
    clock = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
    stamped, begin = Stamped(run, clock), time.perf_counter()
    calls_ns: list[list[int]] = []
    wholes_ns: list[int] = []
    with torch.no_grad():
        stamped(inputs())  # warm-up
        run(*inputs())
        while len(wholes_ns) < _LEAST or (
            len(wholes_ns) < _MOST and (time.perf_counter() - begin) * 1e3 < limit_ms
        ):
            calls_ns.append(stamped(inputs())[0])
            args = inputs()
            start = clock()
            run(*args)
            wholes_ns.append(clock() - start)
    reading_ns = _lower_quartile([-(clock() - clock()) for _ in range(101)])
    each_us = [max(0.0, _lower_quartile(times) - reading_ns) / 1e3 for times in zip(*calls_ns, strict=True)]
    calls = list(zip(map(name_of, stamped.calls), stamped.origins, each_us, strict=True))
    return Timed(_lower_quartile(wholes_ns) / 1e6, calls, len(wholes_ns))


def _lower_quartile(times_ns: Sequence[int]) -> float:
    return statistics.quantiles(times_ns, n=4, method="inclusive")[0]
