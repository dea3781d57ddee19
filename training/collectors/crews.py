"""Kinds of workers: in this process, as threads, as processes. Those of Ray are in `ray_crew`.

A crew hires workers; a seat is one of them as the learner sees it. Whatever the kind, a seat answers by
futures of the standard library, so that one `Collector` serves all of them.
"""

from __future__ import annotations

import abc
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, ClassVar

from torchrlopt.processes import end_with_parent
from training.collectors.worker import Task, Worker


class Seat(abc.ABC):
    """One worker; it does one thing at a time, in the order in which it was asked."""

    @abc.abstractmethod
    def load(self, state: Any) -> Future[None]:
        """Play with a state that was shared (`Crew.share`) from now on."""

    @abc.abstractmethod
    def play(self, keys: Sequence[Any]) -> Future[bytes]:
        """The results of some keys, see `Worker.play`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let the worker go; it may be dead already."""


class Crew(abc.ABC):
    """Workers of one kind.

    Args:
        task: what they do.
    """

    #: What futures raise when a worker has died. Another one then does what it was to do.
    lost: ClassVar[tuple[type[BaseException], ...]] = ()

    def __init__(self, task: Task) -> None:
        self.task = task

    @abc.abstractmethod
    def hire(self) -> Seat:
        """One more worker."""

    def share(self, state: bytes) -> Any:
        """What seats are given of a state: made once for all of them."""
        return state

    def close(self) -> None:
        """Called when all seats are closed."""
        return


class _OwnSeat(Seat):
    """A worker in this thread: it has answered when it is asked."""

    def __init__(self, task: Task) -> None:
        self._worker = Worker(task)

    def load(self, state: Any) -> Future[None]:
        return _answer(self._worker.load, state)

    def play(self, keys: Sequence[Any]) -> Future[bytes]:
        return _answer(self._worker.play, keys)

    def close(self) -> None:
        return None


def _answer(function: Callable[[Any], Any], argument: Any) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(function(argument))
    except Exception as error:  # noqa: BLE001 - whoever reads the future gets it
        future.set_exception(error)
    return future


class InProcess(Crew):
    """Workers that are this thread, one after the other."""

    def hire(self) -> Seat:
        """See `Crew`."""
        return _OwnSeat(self.task)


class _ThreadSeat(Seat):
    def __init__(self, task: Task, one_loads: threading.Lock) -> None:
        self._executor = ThreadPoolExecutor(1)
        self._one_loads = one_loads
        # Made in the thread itself: the number of threads of torch is kept by thread.
        self._worker = self._executor.submit(self._alone, Worker, task)

    def _alone(self, function: Callable[..., Any], *arguments: Any) -> Any:
        with self._one_loads:
            return function(*arguments)

    def load(self, state: Any) -> Future[None]:
        return self._executor.submit(lambda: self._alone(self._worker.result().load, state))

    def play(self, keys: Sequence[Any]) -> Future[bytes]:
        return self._executor.submit(lambda: self._worker.result().play(keys))

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)


class Threads(Crew):
    """Workers that are threads; the core and torch release the interpreter while they compute."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._one_loads = threading.Lock()  # to make networks is to use torch's global random numbers

    def hire(self) -> Seat:
        """See `Crew`."""
        return _ThreadSeat(self.task, self._one_loads)


_of_this_process: Worker | None = None


def _load(task: Task, state: bytes) -> None:
    """Made here and not when the process begins: what a task raises reaches the learner."""
    global _of_this_process
    if _of_this_process is None:
        _of_this_process = Worker(task)
    _of_this_process.load(state)


def _play(keys: Sequence[Any]) -> bytes:
    assert _of_this_process is not None
    return _of_this_process.play(keys)


class _ProcessSeat(Seat):
    def __init__(self, task: Task) -> None:
        # Spawned, not forked: a fork would copy the state of threads and generators.
        context = multiprocessing.get_context("spawn")
        self._executor = ProcessPoolExecutor(1, mp_context=context, initializer=end_with_parent)
        self._task = task

    def load(self, state: Any) -> Future[None]:
        return self._executor.submit(_load, self._task, state)

    def play(self, keys: Sequence[Any]) -> Future[bytes]:
        return self._executor.submit(_play, keys)

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)


class Processes(Crew):
    """Workers that are processes of this machine, each in a pool of its own, so that one can be replaced."""

    lost = (BrokenExecutor,)

    def hire(self) -> Seat:
        """See `Crew`."""
        return _ProcessSeat(self.task)
