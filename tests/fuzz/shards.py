"""Runs cases in separate processes, so that a crash or an endless loop costs one case and is detected.

Each process handles a slice of the cases and exits, which also frees everything that torch has compiled.
"""

from __future__ import annotations

import functools
import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.pool import ThreadPool

from tests.fuzz.outcome import Fuzzer, Outcome

Make = Callable[[int], Fuzzer]
"""Makes the fuzzer of a seed; it is pickled by name."""

#: A fork would share the locks of threads that torch has started.
_CONTEXT = multiprocessing.get_context("spawn")


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
        The number of a case and its outcome, slice by slice.
    """
    slices = [indices[at : at + slice_size] for at in range(0, len(indices), slice_size)]
    with ThreadPool(jobs) as pool:
        for outcomes in pool.imap_unordered(functools.partial(_run_slice, make, seed, limit_s), slices):
            yield from outcomes


def _run_slice(make: Make, seed: int, limit_s: float, indices: Sequence[int]) -> list[tuple[int, Outcome]]:
    """Run cases in a process; after a crash or a hang, the rest in another one."""
    left, outcomes = list(indices), []
    while left:
        connection, theirs = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(target=_work, args=(theirs, make, seed, left), daemon=True)
        process.start()
        theirs.close()  # so that its end is seen when the process ends
        try:
            connection.recv()
        except EOFError:
            raise RuntimeError("the fuzzer cannot be made; what it said stands above") from None
        is_working = True
        while left and is_working:
            try:
                is_working = connection.poll(limit_s)
                outcome = connection.recv() if is_working else Outcome("hung", f"no end after {limit_s:g} s")
            except EOFError:
                is_working = False
                process.join()
                outcome = Outcome("crashed", f"the process ended with status {process.exitcode}")
            outcomes.append((left.pop(0), outcome))
        process.kill()
        process.join()
    return outcomes


def _work(connection: Connection, make: Make, seed: int, indices: Sequence[int]) -> None:
    """Of a process: None when the fuzzer is made, then the outcomes."""
    warnings.simplefilter("ignore")  # operators warn of what they are asked on purpose
    fuzzer = make(seed)
    connection.send(None)
    for index in indices:
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
