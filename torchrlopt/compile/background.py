"""The one thread that builds what may replace graphs in use, at low priority."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from torchrlopt.processes import renew_locks_in_forks

_LOWEST = 19  # the nice value of a thread that gets the processor only if nobody else wants it
_STOP_S = 30.0
"""How long the end of the program waits for code that cannot be interrupted, such as a runtime's compiler: a
thread that returned from it into an interpreter that is gone would crash the program."""


class Work(Protocol):
    """What is built step by step; whoever uses the result keeps it, the queue does not."""

    @property
    def starts_threads(self) -> bool:
        """Whether the next step starts threads that compute later: they would keep its low priority."""
        ...

    def step(self) -> bool:
        """Build one thing; return whether there is another. Raises nothing."""
        ...

    def freeze(self) -> None:
        """In a forked child: nothing will be built any more."""
        ...


class Background:
    """A queue of work and the thread that does it, which lives while there is any; thread-safe."""

    def __init__(self) -> None:
        self._queue: deque[weakref.ref[Work]] = deque()
        self._known: weakref.WeakSet[Work] = weakref.WeakSet()
        self._threads: list[threading.Thread] = []  # the one that takes from the queue, and that of the step
        self._num_first_calls, self._is_building, self._is_stopping = 0, False, False
        self._lock = threading.Lock()
        renew_locks_in_forks(self, "_lock")

    @property
    def is_busy(self) -> bool:
        """Whether anything is being built, which would disturb the timing of calls."""
        return self._is_building or bool(self._queue)

    def add(self, work: Work) -> None:
        """Do some work, after that which is there.

        Raises:
            RuntimeError: the process may not start another thread; the work is not queued.
        """
        with self._lock:
            if not self._threads:
                thread = threading.Thread(target=self._run, name="torchrlopt", daemon=True)
                thread.start()  # it waits for the lock
                self._threads = [thread]
            self._known.add(work)
            self._queue.append(weakref.ref(work))

    @contextlib.contextmanager
    def waits(self) -> Iterator[None]:
        """Begin nothing within the block: the first call of a model."""
        with self._lock:
            self._num_first_calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_first_calls -= 1

    def pause(self) -> None:
        """Let first calls go ahead; called by the builder where it holds no lock."""
        while self._num_first_calls and not self._is_stopping:
            time.sleep(0.01)

    def _run(self) -> None:
        while True:
            self.pause()
            with self._lock:
                self._is_building = bool(self._queue) and not self._is_stopping
                if not self._is_building:
                    self._threads = []
                    return
                reference = self._queue.popleft()
            work = reference()
            if work is not None and self._does(work):
                self._queue.appendleft(reference)
            del work

    def _does(self, work: Work) -> bool:
        """Do a step in a thread of its own: a lowered priority can be raised by privileged programs only."""
        is_low, found = not work.starts_threads, [False]

        def step() -> None:
            with contextlib.suppress(SystemExit):
                if is_low:
                    with contextlib.suppress(OSError):
                        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
                found[0] = work.step()

        thread = threading.Thread(target=step, name="torchrlopt", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there may be no other thread
            return work.step()
        self._threads.append(thread)
        thread.join()
        self._threads.remove(thread)
        return found[0]

    def stop(self) -> None:
        """End the threads, at the end of the program."""
        self._is_stopping = True
        end = time.monotonic() + _STOP_S
        while (threads := self._threads) and time.monotonic() < end:
            # Again and again: it may be lost in a destructor. Where one comes too late, after the step,
            # threads end without a word on SystemExit only.
            for each in threads[1:]:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(each.ident or 0), ctypes.py_object(SystemExit)
                )
            threads[0].join(0.1)

    def forget(self) -> None:
        """In a forked child, in which there is no thread: leave everything as it is."""
        known = list(self._known)
        self.__init__()  # type: ignore[misc]
        for work in known:
            work.freeze()


BACKGROUND = Background()
"""The instance of this process."""

atexit.register(BACKGROUND.stop)
os.register_at_fork(after_in_child=BACKGROUND.forget)
