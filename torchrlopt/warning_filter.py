"""Ignores Python's warnings in one thread only.

`warnings.catch_warnings` replaces the filters of the whole process and puts back what it found: two threads
that leave it in another order than they came in silence the program for good.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import warnings
from collections.abc import Iterator
from typing import Any


class _Inside(threading.local):
    """The patterns of messages that the thread ignores now."""

    def __init__(self) -> None:
        self.patterns: list[re.Pattern[str]] = []

    def match(self, text: str) -> bool:
        """What the `warnings` module calls where a filter has a pattern of messages."""
        return any(pattern.match(text) for pattern in self.patterns)


_inside = _Inside()
_FILTER = ("ignore", _inside, Warning, None, 0)  # as `warnings.filterwarnings` makes them
_num_inside = 0
# Held across a fork, or it would stay closed in the child of another thread's.
_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


@contextlib.contextmanager
def ignored_warnings(message: str = "") -> Iterator[None]:
    """Ignore warnings of this thread, whatever the filters of the process say; those of others stay.

    Args:
        message: pattern of their beginning; all warnings if empty.
    """
    global _num_inside
    with _lock:
        _num_inside += 1
        filters: Any = warnings.filters
        if _FILTER not in filters:
            filters.insert(0, _FILTER)
    _inside.patterns.append(re.compile(message, re.IGNORECASE))
    try:
        yield
    finally:
        _inside.patterns.pop()
        with _lock:
            _num_inside -= 1
            # Where another thread has put filters back that it saved meanwhile, ours stays, and fits nothing.
            filters = warnings.filters
            if not _num_inside and _FILTER in filters:
                filters.remove(_FILTER)
