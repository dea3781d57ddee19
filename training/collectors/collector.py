"""The learner's side of collection: sends state and keys to workers and returns the results in key order.

Workers that die are replaced and their keys are played again. Results depend only on the state and the key,
so the kind of worker, the number of workers and lost workers do not change the collected data.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from types import TracebackType
from typing import Any

from torchrlopt.errors import OptionsError
from training.collectors.crews import Crew, InProcess, Processes, Seat, Threads
from training.collectors.worker import Task, unpacked

AUTO = "auto"
KINDS = (AUTO, "in_process", "threads", "processes", "ray")
MAX_LOSSES = 3  # per share of the keys: keys that kill every worker would otherwise be retried forever


def new_crew(kind: str, task: Task, workers: int, address: str = "") -> Crew:
    """Create a crew of workers of the given kind.

    Args:
        kind: one of `KINDS`; "auto" uses this process for one worker and processes for several.
        task: what the workers do.
        workers: number of workers.
        address: cluster address, for "ray" only.

    Raises:
        OptionsError: the kind is unknown, or Ray is not installed.
    """
    if kind == AUTO:
        kind = "in_process" if workers <= 1 else "processes"
    if kind == "ray":
        try:
            from training.collectors.ray_crew import RayActors
        except ImportError as error:
            raise OptionsError(
                "the collector of Ray needs a package that is not installed", todo="pip install '.[ray]'"
            ) from error
        return RayActors(task, workers, address)
    plain: dict[str, type[Crew]] = {"in_process": InProcess, "threads": Threads, "processes": Processes}
    if kind not in plain:
        raise OptionsError("there is no such collector", expected=f"one of {', '.join(KINDS)}", got=kind)
    return plain[kind](task)


class Collector:
    """Plays the keys of each update on a crew of workers, hired at the first collection.

    Args:
        task: what the workers do.
        kind: see `new_crew`.
        workers: number of workers.
        address: see `new_crew`.
        share: keys per request to a worker; None splits the keys evenly between the workers, which suits keys
            that take equally long.

    Attributes:
        broadcast_seconds: time until every worker had loaded the state, in the last collection.
        collect_seconds: time from then until the last result arrived, in the last collection.
        replaced: number of lost workers replaced so far.
    """

    def __init__(
        self, task: Task, kind: str = AUTO, workers: int = 1, address: str = "", share: int | None = 1
    ) -> None:
        self.broadcast_seconds = self.collect_seconds = 0.0
        self.replaced = 0
        self._given = (kind, task, workers, address)
        self._share = share
        self._crew: Crew | None = None
        self._seats: list[Seat] = []
        self._shared: Any = None

    def __enter__(self) -> Collector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Dismiss the workers. A later collection hires new ones."""
        for seat in self._seats:
            seat.close()
        if self._crew is not None:
            self._crew.close()
        self._seats, self._crew = [], None

    def collect(self, state: bytes, keys: Sequence[Any]) -> list[Any]:
        """Play all keys and return the results in the order of the keys.

        Args:
            state: everything that the workers need to play.
            keys: what they play.

        Raises:
            RuntimeError: workers died repeatedly on the same keys, or on loading the state.
            Exception: whatever the task raised.
        """
        if self._crew is None:
            self._crew = new_crew(*self._given)
            self._seats = [self._crew.hire() for _ in range(max(1, self._given[2]))]
        begin = time.perf_counter()
        self._broadcast(self._crew, state)
        middle = time.perf_counter()
        found = self._play_all(self._crew, self._shares(keys))
        self._shared = None
        self.broadcast_seconds = middle - begin
        self.collect_seconds = time.perf_counter() - middle
        return found

    def _shares(self, keys: Sequence[Any]) -> list[Sequence[Any]]:
        size = self._share or -(-len(keys) // len(self._seats)) or 1
        return [keys[i : i + size] for i in range(0, len(keys), size)]

    def _broadcast(self, crew: Crew, state: bytes) -> None:
        self._shared = crew.share(state)
        loading = [_asked(crew, seat.load, self._shared) for seat in self._seats]
        for number, future in enumerate(loading):
            try:
                future.result()
            except crew.lost:
                self._replace(crew, number)

    def _replace(self, crew: Crew, number: int) -> None:
        """Hire a replacement for a lost worker and load the state into it.

        Raises:
            RuntimeError: it died while loading, and so did its successors.
        """
        for losses in range(1, MAX_LOSSES + 1):
            self._seats[number].close()
            self._seats[number] = crew.hire()
            self.replaced += 1
            try:
                _asked(crew, self._seats[number].load, self._shared).result()
            except crew.lost as error:
                if losses == MAX_LOSSES:
                    raise RuntimeError(f"{losses} workers died while they loaded their state") from error
            else:
                break

    def _play_all(self, crew: Crew, shares: Sequence[Sequence[Any]]) -> list[Any]:
        found: dict[int, list[Any]] = {}
        losses = [0] * len(shares)
        todo = deque(range(len(shares)))
        idle = deque(range(len(self._seats)))
        running: dict[Future[bytes], tuple[int, int]] = {}
        while len(found) < len(shares):
            while idle and todo:
                number, row = idle.popleft(), todo.popleft()
                running[_asked(crew, self._seats[number].play, shares[row])] = (number, row)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                number, row = running.pop(future)
                try:
                    found[row] = unpacked(future.result())
                except crew.lost as error:
                    losses[row] += 1
                    if losses[row] >= MAX_LOSSES:
                        text = f"{MAX_LOSSES} workers died while they played {shares[row]}"
                        raise RuntimeError(text) from error
                    self._replace(crew, number)
                    todo.appendleft(row)
                idle.append(number)
        return [result for row in range(len(shares)) for result in found[row]]


def _asked(crew: Crew, ask: Any, argument: Any) -> Future[Any]:
    """Send a request to a seat; if the worker is already known to be dead, the future holds the error."""
    try:
        return ask(argument)
    except crew.lost as error:
        future: Future[Any] = Future()
        future.set_exception(error)
        return future
