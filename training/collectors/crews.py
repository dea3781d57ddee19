"""Worker kinds: this process, threads and processes. Ray actors are in `ray_crew`.

A crew hires workers; a seat is the learner's handle to one of them. Seats of every kind return futures of the
standard library, so one `Collector` serves all kinds.
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
    """Handle to one worker, which runs its requests one at a time, in order."""

    @abc.abstractmethod
    def load(self, state: Any) -> Future[None]:
        """Load a state shared by `Crew.share`; later keys are played with it."""

    @abc.abstractmethod
    def play(self, keys: Sequence[Any]) -> Future[bytes]:
        """Play some keys and return the results; see `Worker.play`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Dismiss the worker, which may already be dead."""


class Crew(abc.ABC):
    """Workers of one kind.

    Args:
        task: what the workers do.
    """

    #: Exceptions that a future raises when its worker has died. Another worker then repeats the request.
    lost: ClassVar[tuple[type[BaseException], ...]] = ()

    def __init__(self, task: Task) -> None:
        self.task = task

    @abc.abstractmethod
    def hire(self) -> Seat:
        """Hire one more worker."""

    def share(self, state: bytes) -> Any:
        """Prepare a state for sending to seats, once for all of them."""
        return state

    def close(self) -> None:
        """Release resources after all seats are closed."""
        return


class _OwnSeat(Seat):
    """A worker in the calling thread; its futures are done when they are returned."""

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
    except Exception as error:  # noqa: BLE001 - reading the future raises it
        future.set_exception(error)
    return future


class InProcess(Crew):
    """Workers that run one after another in the calling thread."""

    def hire(self) -> Seat:
        """See `Crew`."""
        return _OwnSeat(self.task)


class _ThreadSeat(Seat):
    def __init__(self, task: Task, one_loads: threading.Lock) -> None:
        self._executor = ThreadPoolExecutor(1)
        self._one_loads = one_loads
        # Created in the thread itself, because torch keeps its number of threads per thread.
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
    """Workers that are threads; the core and torch release the GIL while they compute."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._one_loads = threading.Lock()  # creating networks uses torch's global random number generator

    def hire(self) -> Seat:
        """See `Crew`."""
        return _ThreadSeat(self.task, self._one_loads)


_of_this_process: Worker | None = None


def _load(task: Task, state: bytes) -> None:
    """Create the player here, not at process start, so that the task's exceptions reach the learner."""
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
    """Workers that are local processes, each in its own pool so that it can be replaced alone."""

    lost = (BrokenExecutor,)

    def hire(self) -> Seat:
        """See `Crew`."""
        return _ProcessSeat(self.task)
