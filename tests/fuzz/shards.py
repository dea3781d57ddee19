"""Runs cases in separate processes, so that a crash or an endless loop costs one case and is detected.

Each process handles a slice of the cases and exits, which also frees everything that torch has compiled.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from tests.fuzz.outcome import Fuzzer, Outcome

Make = Callable[[int], Fuzzer]
"""Makes the fuzzer of a seed; it is pickled by name."""


def run(
    make: Make, seed: int, indices: Sequence[int], jobs: int, slice_size: int, limit_s: float
) -> Iterator[tuple[int, Outcome]]:
    """Run cases in some order.

    Args:
        make: makes the fuzzer, in each process anew.
        seed: of the fuzzer.
        indices: numbers of the cases.
        jobs: processes at a time.
        slice_size: cases for one process.
        limit_s: a case that takes longer has hung.

    Yields:
        The number of a case and its outcome.
    """
    slices = deque(indices[i : i + slice_size] for i in range(0, len(indices), slice_size))
    running: dict[Connection, _Shard] = {}
    try:
        while slices or running:
            while slices and len(running) < jobs:
                shard = _Shard(make, seed, slices.popleft(), limit_s)
                running[shard.connection] = shard
            for connection in wait(list(running), timeout=1.0):
                assert isinstance(connection, Connection)
                yield from running[connection].receive()
            for connection, shard in list(running.items()):
                yield from shard.end_if_hung()
                if shard.is_over:
                    del running[connection]
                    if shard.left:
                        slices.appendleft(shard.left)
    finally:
        for shard in running.values():
            shard.end()


class _Shard:
    """One process with its slice.

    Attributes:
        left: numbers of the cases without an outcome.
        is_over: the process has ended.
    """

    def __init__(self, make: Make, seed: int, indices: Sequence[int], limit_s: float) -> None:
        # A fork would share the locks of threads that torch has started.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe(duplex=False)
        self.left = list(indices)
        self.is_over = False
        self._limit_s = limit_s
        self._begun_s: float | None = None
        self._process: BaseProcess = context.Process(
            target=_work, args=(theirs, make, seed, list(indices)), daemon=True
        )
        self._process.start()
        theirs.close()  # so that its end is seen when the process ends

    def receive(self) -> Iterator[tuple[int, Outcome]]:
        """What the process has to say: an outcome, or that it has ended."""
        try:
            message = self.connection.recv()
        except EOFError:
            self._process.join()
            self.connection.close()
            self.is_over = True
            if self._begun_s is not None:
                code = self._process.exitcode
                yield self.left.pop(0), Outcome("crashed", f"the process ended with status {code}")
            elif self.left:
                raise RuntimeError("the fuzzer cannot be made; what it said stands above") from None
            return
        if message is None:
            self._begun_s = time.monotonic()
            return
        self._begun_s = None
        yield self.left.pop(0), message

    def end_if_hung(self) -> Iterator[tuple[int, Outcome]]:
        """Kill a process whose case takes too long."""
        if self._begun_s is None or time.monotonic() - self._begun_s < self._limit_s:
            return
        self.end()
        yield self.left.pop(0), Outcome("hung", f"no end after {self._limit_s:g} s")

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join()
        self.connection.close()
        self.is_over = True


def _work(connection: Connection, make: Make, seed: int, indices: Sequence[int]) -> None:
    """Of a process: None before each case, its outcome after it."""
    warnings.simplefilter("ignore")  # operators warn of what they are asked on purpose
    fuzzer = make(seed)
    for index in indices:
        connection.send(None)
        connection.send(guarded(fuzzer, index))


def guarded(fuzzer: Fuzzer, index: int) -> Outcome:
    """The outcome of a case; whatever it raises is a failure."""
    try:
        return fuzzer.run(index)
    except Exception as error:  # noqa: BLE001 - to find what nobody thought of is what fuzzing is for
        return Outcome("raised", first_line(error))


def first_line(error: BaseException) -> str:
    """Type and beginning of what an exception says."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"
