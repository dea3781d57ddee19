"""`Gate`: one thread at a time compiles a model; others wait for it, or run the original meanwhile."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterator

from torchrlopt.torch_private.modes import is_traced_by_compiler

_POLL_S = 0.25
_PATIENCE_S = 10.0
"""How long to wait for a thread that compiles nothing: the timing of its first call takes a few seconds."""


class NotCompiled(Exception):  # noqa: N818  # no error: a call that has not begun goes to the gate
    """There is no code for a call, and this thread is not the one that compiles. Nothing has run."""


class _Inside(threading.local):
    """The gates that this thread has entered."""

    def __init__(self) -> None:
        self.gates: set[Gate] = set()


_INSIDE = _Inside()


class Gate:
    """Admits one thread at a time, which may enter again.

    An interrupt at any moment leaves it open: the thread inside is remembered, not a lock that it holds.

    Args:
        waits: whether other threads wait.
    """

    def __init__(self, waits: bool) -> None:
        self._waits = waits
        self._thread: int | None = None
        self._changed = threading.Condition(threading.Lock())
        _GATES.add(self)

    @property
    def is_mine(self) -> bool:
        """Whether this thread is inside."""
        return self._thread == threading.get_ident()

    @contextlib.contextmanager
    def entered(self) -> Iterator[bool]:
        """Be inside, unless another thread is; returns whether this one is. Never waits."""
        if self.is_mine:
            yield True
            return
        try:
            with self._changed:
                if self._thread is None and not _IN_FORK.is_closed:
                    self._thread = threading.get_ident()
                    _INSIDE.gates.add(self)
            yield self.is_mine
        finally:
            with self._changed:
                if self.is_mine:
                    self._thread = None
                    self._changed.notify_all()
                    _INSIDE.gates.discard(self)

    def wait(self) -> bool:
        """Wait until no thread is inside. Returns False if this thread must not wait, or not any longer.

        It must not if it is inside another gate, as two threads might then wait for each other; nor inside of
        Dynamo, for which the other one may wait; nor if nobody can come inside. If nothing has been compiled
        for some time, the thread inside runs the program's code, which may wait for this one.
        """
        if not self._waits or _INSIDE.gates or is_traced_by_compiler() or _IN_FORK.is_closed:
            return False
        from torchrlopt.torch_private.dynamo import is_compiling_elsewhere  # heavy, and loaded by the other

        last = time.monotonic()
        with self._changed:
            while self._thread is not None:
                if self._changed.wait(_POLL_S) or is_compiling_elsewhere():
                    last = time.monotonic()
                elif time.monotonic() - last > _PATIENCE_S:
                    return False
        return True

    def reopen(self) -> None:
        """In a forked child: the thread inside is gone, unless it is the one that has forked."""
        self._changed = threading.Condition(threading.Lock())
        if not self.is_mine:
            self._thread = None


_GATES: weakref.WeakSet[Gate] = weakref.WeakSet()


class _InFork:
    """What a forked child must know.

    Attributes:
        is_closed: whether another thread of the parent was compiling. The tables of PyTorch that it changes
            meanwhile then stay as they were in between, so the child must not compile. (To wait with the fork
            could last for ever: Python already holds locks for it that the other thread may need.)
    """

    is_closed = False


_IN_FORK = _InFork()


def _reopen_all() -> None:
    if not _GATES:
        return
    from torchrlopt.torch_private.dynamo import is_compiling_elsewhere  # heavy, and loaded if there is a gate

    _IN_FORK.is_closed |= is_compiling_elsewhere()
    for gate in _GATES:
        gate.reopen()


os.register_at_fork(after_in_child=_reopen_all)
