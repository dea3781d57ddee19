"""The kernels of a call on a CUDA device and their times, from PyTorch's profiler."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

NUM_CALLS = 6
_NAME_LENGTH = 110
_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")

Span = tuple[float, float, str]
"""Start time, duration (both in microseconds) and name of a kernel in a call."""
KernelTime = tuple[str, int, float, float]
"""All kernels of one name in a call: name, launches, total microseconds, and the same without the overlap
with the next kernel."""


def kernel_times(call: Callable[[], object]) -> list[KernelTime]:
    """Profile some calls, each of which waits for the device.

    Raises:
        ValueError: the calls do not run the same kernels.
    """
    import torch  # imported here: reading results does not need it

    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(NUM_CALLS):
            call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    spans = [(each["ts"], each["dur"], each["name"]) for each in events if each.get("cat") in _KINDS]
    return summed(spans, NUM_CALLS)


def summed(spans: Sequence[Span], num_calls: int) -> list[KernelTime]:
    """Medians over the calls, summed by name; the longest first.

    Raises:
        ValueError: the calls do not run the same kernels.
    """
    import pandas as pd  # imported here: it would count towards the memory of a runtime's process

    if not spans:
        return []
    frame = pd.DataFrame(sorted(spans), columns=["start", "us", "kernel"])
    frame["kernel"] = frame.kernel.str.removeprefix("void ").str[:_NAME_LENGTH]
    overlap = (frame.start + frame.us - frame.start.shift(-1)).clip(lower=0).fillna(0)
    frame["busy"] = frame.us - overlap.clip(upper=frame.us)
    per_call, rest = divmod(len(frame), num_calls)
    frame["call"] = frame.index // max(1, per_call)
    # By name and position among kernels of that name, because concurrent kernels change places.
    frame["launch"] = frame.groupby(["call", "kernel"]).cumcount()
    launches = frame.groupby(["kernel", "launch"])
    if rest or (launches.size() != num_calls).any():
        raise ValueError("the calls do not run the same kernels")
    by_name = launches[["us", "busy"]].median().groupby("kernel").agg(["sum", "size"])
    by_name = by_name.sort_values(("busy", "sum"), ascending=False)
    return [
        (str(name), int(row["us", "size"]), float(row["us", "sum"]), float(row["busy", "sum"]))
        for name, row in by_name.iterrows()
    ]
