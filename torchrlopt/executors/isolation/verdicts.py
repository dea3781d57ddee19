"""Remembers the outcomes of first-time tasks of runtimes, so that they are not tried again.

Outcomes are kept in this process and, if `remember_in` has set a store, on disk for later processes.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

MAX_AGE_S = 90 * 86_400.0
"""The same as for timing verdicts (`judge/stored.py`). A retry costs a process that may be lost."""

_MOST = 4096  # that a process remembers; the oldest are dropped first


class Store(Protocol):
    """Keeps JSON objects on disk; see `plan.store.PlanStore`."""

    def get(self, key: str) -> dict[str, Any] | None:
        """Return what was put, or None."""
        ...

    def put(self, key: str, payload: Mapping[str, Any]) -> None:
        """Store the payload."""
        ...


class _Place:
    """Where verdicts are stored, and for which machine."""

    def __init__(self) -> None:
        self.store: Callable[[], Store] | None = None
        self.machine = ""


_PLACE = _Place()
_KNOWN: dict[str, dict[str, Any]] = {}


def remember_in(store: Callable[[], Store], machine: str) -> None:
    """Store verdicts on disk from now on.

    Args:
        store: returns the store, whose location may change.
        machine: identifies this machine, because runtimes choose code by processor.
    """
    _PLACE.store, _PLACE.machine = store, machine


def key_of(parts: Mapping[str, Any], *data: bytes) -> str:
    """SHA-256 of everything that a verdict depends on.

    Args:
        parts: JSON-serialisable.
        data: further data to hash.
    """
    digest = hashlib.sha256(json.dumps({**parts, "machine": _PLACE.machine}, sort_keys=True).encode())
    for each in data:
        digest.update(hashlib.sha256(each).digest())
    return f"trial-{digest.hexdigest()}"


def known(key: str, is_stored: bool) -> dict[str, Any] | None:
    """The verdict for a key, with its time under "at"; None if there is none or it is too old.

    Args:
        key: see `key_of`.
        is_stored: whether to look on disk as well.
    """
    found = _KNOWN.get(key)
    if found is None and is_stored and _PLACE.store is not None:
        found = (_PLACE.store().get(key) or {}).get("trial")
    if not isinstance(found, dict):
        return None
    is_whole = isinstance(found.get("answer"), dict) or isinstance(found.get("death"), str)
    at = found.get("at")
    if not is_whole or not isinstance(at, int | float) or not math.isfinite(at):
        return None
    return found if 0 <= time.time() - at <= MAX_AGE_S else None


def remember(key: str, verdict: Mapping[str, Any], is_stored: bool) -> None:
    """Remember a verdict.

    Args:
        key: see `key_of`.
        verdict: JSON-serialisable.
        is_stored: whether to store it on disk as well.
    """
    found = {**verdict, "at": time.time()}
    _KNOWN[key] = found
    while len(_KNOWN) > _MOST:
        _KNOWN.pop(next(iter(list(_KNOWN))), None)
    if is_stored and _PLACE.store is not None:
        _PLACE.store().put(key, {"trial": found})
