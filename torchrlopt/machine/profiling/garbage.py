"""Python's garbage collector, kept out of what is timed.

It belongs to the whole process: nothing that a user's compilation goes through may switch it off.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Switches the collector off for a while; one that was off already stays off."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
