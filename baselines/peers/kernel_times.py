"""Which kernels a call runs on a CUDA device, and for how long, by PyTorch's profiler."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

NUM_CALLS = 6
_NAME_LENGTH = 110
_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")


class Span(NamedTuple):
    """One kernel, or one copy, of one call, in microseconds."""

    start_us: float
    us: float
    name: str


class KernelTime(NamedTuple):
    """All kernels of one name in a call.

    Attributes:
        kernel: its name, shortened.
        launches: in one call.
        kernel_us: their times, added up; those that run beside each other count twice.
        busy_us: the same without the time in which the next kernel ran too.
    """

    kernel: str
    launches: int
    kernel_us: float
    busy_us: float


def kernel_times(call: Callable[[], object]) -> list[KernelTime]:
    """Profile some calls, each of which waits for the device.

    Raises:
        ValueError: the calls do not run the same kernels.
    """
    import torch  # who reads the results does without

    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(NUM_CALLS):
            call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    spans = [
        Span(float(each["ts"]), float(each["dur"]), str(each["name"]))
        for each in events
        if each.get("cat") in _KINDS
    ]
    return summed(spans, NUM_CALLS)


def summed(spans: Sequence[Span], num_calls: int) -> list[KernelTime]:
    """Medians over the calls, added up by name; the longest first.

    Raises:
        ValueError: the calls do not run the same kernels.
    """
    spans = sorted(spans)
    per_call, rest = divmod(len(spans), num_calls)
    # By name and order among those of that name: kernels beside each other change places.
    found: dict[str, list[list[KernelTime]]] = defaultdict(lambda: [[] for _ in range(num_calls)])
    for at, span in enumerate(spans):
        name = span.name.removeprefix("void ")[:_NAME_LENGTH]
        time = KernelTime(name, 1, span.us, span.us - _overlap_us(spans, at))
        found[name][min(at // max(1, per_call), num_calls - 1)].append(time)
    if rest or any(len(set(map(len, calls))) > 1 for calls in found.values()):
        raise ValueError("the calls do not run the same kernels")
    return sorted(map(_medians, found.values()), key=lambda each: -each.busy_us)


def _medians(calls: Sequence[Sequence[KernelTime]]) -> KernelTime:
    """Of one name: the sum over its launches of the medians over the calls."""
    same = list(zip(*calls, strict=True))
    kernel_us = sum(statistics.median(each.kernel_us for each in launch) for launch in same)
    busy_us = sum(statistics.median(each.busy_us for each in launch) for launch in same)
    return KernelTime(same[0][0].kernel, len(same), kernel_us, busy_us)


def _overlap_us(spans: Sequence[Span], at: int) -> float:
    """For how long the next one runs beside this one."""
    if at + 1 == len(spans):
        return 0.0
    end = spans[at].start_us + spans[at].us
    return min(spans[at].us, max(0.0, end - spans[at + 1].start_us))
