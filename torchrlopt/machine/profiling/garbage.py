"""Disables Python's garbage collector during timing.

The collector is process-wide, so code on the path of a user's compilation must not disable it.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable the collector temporarily; if it was disabled before, it stays disabled."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
