"""One first call in its process: `python -m baselines.shared.cold_call MODEL WAY THREADS BATCH` prints JSON.

What is imported here, or by the model, is not part of the first call, so that is next to nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from baselines.models import build
from baselines.peers.memory import peak_mb, reset_peak

#: Options of `optimise` for the ways that call it.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "stored": {},
    "frozen": {"weights": "frozen"},
    "released": {"weights": "frozen", "release_weights": True},
    "max-autotune": {"executor": "auto"},
}
#: Calls of the model before the first call, so that the memory of both begins alike; and after it.
_CALLS = 2


def main() -> None:
    """The cost of the first call of the model that the command line names, in the way that it names."""
    name, way, threads, batch = sys.argv[1:]
    torch.set_num_threads(int(threads))
    model, inputs = build(name, int(batch))
    with torch.no_grad():
        for _ in range(_CALLS):
            model(*inputs)
        is_reset = reset_peak()
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        call = _called(model, inputs, way)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        answer = {"wall_s": wall_s, "cpu_s": cpu_s, "peak_mb": peak_mb()} | _told(call)
        is_reset = reset_peak() and is_reset
        for _ in range(_CALLS):
            call(*inputs)
        answer["calls_peak_mb"] = peak_mb() if is_reset else None
    print(json.dumps(answer))


def _called(model: torch.nn.Module, inputs: tuple[Any, ...], way: str) -> Callable[..., Any]:
    """What is called from now on, after the first call."""
    if way in OPTIONS:
        import torchrlopt

        return torchrlopt.optimise(model, inputs, on_error="raise", **OPTIONS[way])
    call = model if way == "eager" else torch.compile(model, backend=way)
    call(*inputs)
    return call


def _told(call: Callable[..., Any]) -> dict[str, Any]:
    """What the report says, of ours."""
    report = getattr(call, "report", None)
    if report is None:
        return {"kept": "", "phases_ms": {}}
    kept = report.executor if report.kept == "rewritten" else report.kept
    return {"kept": kept, "phases_ms": report.phases_ms}


if __name__ == "__main__":
    main()
