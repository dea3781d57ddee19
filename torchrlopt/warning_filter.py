"""Suppresses Python warnings in one thread only.

`warnings.catch_warnings` replaces the filters of the whole process and restores the previous ones on exit: if
two threads exit in a different order than they entered, warnings stay suppressed for good.
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
    """The message patterns that the thread currently ignores."""

    def __init__(self) -> None:
        self.patterns: list[re.Pattern[str]] = []

    def match(self, text: str) -> bool:
        """Whether a message is ignored; the `warnings` module calls this like `re.Pattern.match`."""
        return any(pattern.match(text) for pattern in self.patterns)


_inside = _Inside()
_FILTER = ("ignore", _inside, Warning, None, 0)  # the format of `warnings.filterwarnings`
_num_inside = 0
# Acquired across a fork, or it could stay locked in the child by a thread that does not exist there.
_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


@contextlib.contextmanager
def ignored_warnings(message: str = "") -> Iterator[None]:
    """Ignore warnings of this thread, overriding the filters of the process; other threads still warn.

    Args:
        message: pattern that the message must begin with; all warnings if empty.
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
            # If another thread has meanwhile restored filters that it had saved, ours remains but matches
            # nothing.
            filters = warnings.filters
            if not _num_inside and _FILTER in filters:
                filters.remove(_FILTER)
