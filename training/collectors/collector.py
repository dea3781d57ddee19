"""The learner's side of collection: sends state and keys to workers and returns the results in key order.

Results depend only on the state and the key, so the number of workers and lost workers do not change the
collected data.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from types import TracebackType
from typing import Any

from torchrlopt.processes import end_with_parent
from training.collectors.worker import Task, Worker, unpacked

MAX_LOSSES = 3  # per share of the keys: keys that kill every worker would otherwise be retried forever

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


def _asked(process: ProcessPoolExecutor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Send a request; if the process is already known to be dead, the future holds the error."""
    try:
        return process.submit(function, *arguments)
    except BrokenExecutor as error:
        future: Future[Any] = Future()
        future.set_exception(error)
        return future


class Collector:
    """Plays the keys of each update, in this process or on several others, begun at the first collection.

    Processes that die are replaced and their keys are played again.

    Args:
        task: what the workers do.
        workers: number of processes; 1 uses this one.
        share: keys per request to a process; None splits the keys evenly between them, which suits keys that
            take equally long.

    Attributes:
        broadcast_seconds: time until every worker had loaded the state, in the last collection.
        collect_seconds: time from then until the last result arrived, in the last collection.
        replaced: number of lost processes replaced so far.
    """

    def __init__(self, task: Task, workers: int = 1, share: int | None = 1) -> None:
        self.broadcast_seconds = self.collect_seconds = 0.0
        self.replaced = 0
        self._task, self._workers, self._share = task, workers, share
        self._here: Worker | None = None
        # Each in its own pool, so that it can be replaced alone.
        self._processes: list[ProcessPoolExecutor] = []

    def __enter__(self) -> Collector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Dismiss the workers. A later collection begins new ones."""
        for process in self._processes:
            process.shutdown(cancel_futures=True)
        self._processes, self._here = [], None

    def collect(self, state: bytes, keys: Sequence[Any]) -> list[Any]:
        """Play all keys and return the results in the order of the keys.

        Args:
            state: everything that the workers need to play.
            keys: what they play.

        Raises:
            RuntimeError: workers died repeatedly on the same keys, or on loading the state.
            Exception: whatever the task raised.
        """
        begin = time.perf_counter()
        if self._workers <= 1:
            self._here = self._here or Worker(self._task)
            self._here.load(state)
        else:
            self._broadcast(state)
        middle = time.perf_counter()
        found: list[Any] = unpacked(self._here.play(keys)) if self._here else self._play_all(state, keys)
        self.broadcast_seconds = middle - begin
        self.collect_seconds = time.perf_counter() - middle
        return found

    def _begin(self) -> ProcessPoolExecutor:
        # Spawned, not forked: a fork would copy the state of threads and generators.
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, mp_context=context, initializer=end_with_parent)

    def _broadcast(self, state: bytes) -> None:
        self._processes = self._processes or [self._begin() for _ in range(self._workers)]
        loading = [_asked(process, _load, self._task, state) for process in self._processes]
        for number, future in enumerate(loading):
            try:
                future.result()
            except BrokenExecutor:
                self._replace(number, state)

    def _replace(self, number: int, state: bytes) -> None:
        """Replace a lost process and load the state into its successor.

        Raises:
            RuntimeError: it died while loading, and so did its successors.
        """
        for losses in range(1, MAX_LOSSES + 1):
            self._processes[number].shutdown(cancel_futures=True)
            self._processes[number] = self._begin()
            self.replaced += 1
            try:
                _asked(self._processes[number], _load, self._task, state).result()
            except BrokenExecutor as error:
                if losses == MAX_LOSSES:
                    raise RuntimeError(f"{losses} workers died while they loaded their state") from error
            else:
                break

    def _play_all(self, state: bytes, keys: Sequence[Any]) -> list[Any]:
        size = self._share or -(-len(keys) // self._workers) or 1
        shares = [keys[i : i + size] for i in range(0, len(keys), size)]
        found: dict[int, list[Any]] = {}
        losses = [0] * len(shares)
        todo = deque(range(len(shares)))
        idle = deque(range(self._workers))
        running: dict[Future[bytes], tuple[int, int]] = {}
        while len(found) < len(shares):
            while idle and todo:
                number, row = idle.popleft(), todo.popleft()
                running[_asked(self._processes[number], _play, shares[row])] = (number, row)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                number, row = running.pop(future)
                try:
                    found[row] = unpacked(future.result())
                except BrokenExecutor as error:
                    losses[row] += 1
                    if losses[row] >= MAX_LOSSES:
                        text = f"{MAX_LOSSES} workers died while they played {shares[row]}"
                        raise RuntimeError(text) from error
                    self._replace(number, state)
                    todo.appendleft(row)
                idle.append(number)
        return [result for row in range(len(shares)) for result in found[row]]
