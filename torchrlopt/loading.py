"""How long the imports took that a first call waits for; its report says so."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Iterable

_MIN_MS = 1.0
"""What has been imported before takes microseconds, of which nobody has to know."""

_pending_ms: dict[str, float] = {}
_lock = threading.Lock()


def load(phase: str, modules: Iterable[str]) -> None:
    """Import modules; the time is told under that name to the next report."""
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
    """The times that no report has told so far, by phase."""
    with _lock:  # two threads that compile at once: one of them tells
        taken = dict(_pending_ms)
        _pending_ms.clear()
    return taken
