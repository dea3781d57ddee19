"""A first call in a process that has only built the model; see `baselines.calls`.

Whatever is imported here, or by the model, is not part of the first call, so this file imports almost
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from baselines.models import build
from baselines.shared.memory import peak_mb, reset_peak

BASE, STORED = "aot_eager", "stored"
#: Options of `optimise`, for the ways that call it.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    STORED: {},
    "frozen": {"weights": "frozen"},
    "released": {"weights": "frozen", "release_weights": True},
    "max-autotune": {"executor": "auto"},
}
#: Ways of calling the model for the first time.
WAYS = ("eager", BASE, *OPTIONS)
#: Calls of the model before the first call, so that the memory of both starts alike; and after it.
_CALLS = 2


class ColdCall:
    """A model of the suite before its first call in one of `WAYS`."""

    def __init__(self, folder: str, model: str, way: str, threads: int, batch: int) -> None:
        torch.set_num_threads(threads)
        self._model, self._inputs = build(model, batch)
        self._way = way

    @torch.no_grad()
    def measure(self) -> dict[str, Any]:
        """Costs of the first call, our report's figures, and the memory of the calls after it."""
        for _ in range(_CALLS):
            self._model(*self._inputs)
        is_reset = reset_peak()
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        call = self._called()
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        found = {"wall_s": wall_s, "cpu_s": cpu_s, "peak_mb": peak_mb(), "kept": "", "phases_ms": {}}
        report = getattr(call, "report", None)
        if report is not None:
            found["kept"] = report.executor if report.kept == "rewritten" else report.kept
            found["phases_ms"] = dict(report.phases_ms)
        is_reset = reset_peak() and is_reset
        for _ in range(_CALLS):
            call(*self._inputs)
        found["later_peak_mb"] = peak_mb() if is_reset else None
        return found

    def _called(self) -> Callable[..., Any]:
        """Make the first call; returns the callable for later ones."""
        if self._way in OPTIONS:
            import torchrlopt

            return torchrlopt.optimise(self._model, self._inputs, on_error="raise", **OPTIONS[self._way])
        call = self._model if self._way == "eager" else torch.compile(self._model, backend=self._way)
        call(*self._inputs)
        return call
