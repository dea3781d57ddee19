"""Measures how long lazy imports delay a first call, for its report."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Iterable

_MIN_MS = 1.0
"""Shorter times are not reported: importing a module that is already loaded takes microseconds."""

_pending_ms: dict[str, float] = {}
_lock = threading.Lock()


def load(phase: str, modules: Iterable[str]) -> None:
    """Import modules and record the time under `phase` for the next report."""
    start = time.perf_counter()
    try:
        for name in modules:
            importlib.import_module(name)
    finally:
        ms = (time.perf_counter() - start) * 1e3
        if ms >= _MIN_MS:
            with _lock:
                _pending_ms[phase] = _pending_ms.get(phase, 0.0) + ms


def take_ms() -> dict[str, float]:
    """Return and clear the import times not yet reported, by phase."""
    with _lock:  # if two threads compile at once, only one reports them
        taken = dict(_pending_ms)
        _pending_ms.clear()
    return taken
