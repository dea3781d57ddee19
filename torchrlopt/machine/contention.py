"""How long this process waited for processors: what it measures meanwhile says nothing of its own work.

The kernel counts for each thread how long it was ready to run and did not (`schedstat`), and for each control
group how long a quota held it back (`cpu.stat`). A neighbour on the same host that takes a virtual processor
away as a whole is not seen here.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

_TASKS = "/proc/self/task"

_MOST_THREADS = 64  # a reading takes some ten microseconds for each

# Threads that are woken up wait for microseconds on the calmest machine.
_CALM_SHARE, _CALM_NS = 0.02, 30_000


def is_calm(waited: int, wall: int) -> bool:
    """Whether what took so long tells how long it takes.

    Args:
        waited: difference of two readings of `waited_ns`, in nanoseconds.
        wall: time between them, in nanoseconds.
    """
    return waited <= _CALM_SHARE * wall + _CALM_NS


def waited_ns() -> int:
    """Time that threads of this process were held up so far, in nanoseconds, added over all of them.

    By other processes on the same processors, and by a quota of processor time. 0 where the system does not
    tell. The difference of two readings is what counts; it is too small where a thread has ended in between.
    Of hundreds of threads the oldest count: those of PyTorch and of the runtimes live as long as the process.
    """
    total = 0
    try:
        threads = os.listdir(_TASKS)
    except OSError:
        return 0
    threads.sort(key=_age)
    for thread in threads[:_MOST_THREADS]:
        try:
            with open(f"{_TASKS}/{thread}/schedstat", "rb") as file:
                total += int(file.read().split()[1])
        except (OSError, IndexError, ValueError):  # it has ended, or the kernel does not count
            continue
    return total + _held_back_ns()


def _age(thread: str) -> tuple[bool, int]:
    """Sorts ids of threads, the oldest first: they are given upwards and, past the greatest, from 1 again."""
    return int(thread) < os.getpid(), int(thread)


def own_time() -> float:
    """A clock that stands still while other processes have the processor, in seconds; for budgets.

    Wall time without that in which this thread was ready to run and did not. Differences of readings by one
    thread count. The searches of the core go by the same clock.
    """
    return time.perf_counter() - own_waited_ns() / 1e9


def own_waited_ns() -> int:
    """The same as `waited_ns` of this thread alone, without the quota; 0 where the system does not tell."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _held_back_ns() -> int:
    """By the quota of the control group."""
    path, unit_ns = _quota_file()
    if path is None:
        return 0
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        counts = dict(line.split() for line in lines)
        return int(counts["throttled_usec" if unit_ns == 1000 else "throttled_time"]) * unit_ns
    except (OSError, ValueError, KeyError):
        return 0


@functools.cache
def _quota_file() -> tuple[Path | None, int]:
    """`cpu.stat` of the group that this process is in, and its unit in nanoseconds."""
    try:
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except (OSError, ValueError):
        return None, 1
    root = Path("/sys/fs/cgroup")
    for _, controllers, name in groups:
        if "cpu" in controllers.split(","):
            unit_ns, word, folders = 1, "throttled_time", (root / "cpu", root / controllers)
        elif not controllers:
            unit_ns, word, folders = 1000, "throttled_usec", (root, root / "unified")
        else:
            continue
        for folder in folders:
            # Inside a container the name that is told is that of outside: its root is the group.
            for path in (folder / name.lstrip("/") / "cpu.stat", folder / "cpu.stat"):
                try:
                    if word in path.read_text(encoding="ascii"):
                        return path, unit_ns
                except (OSError, ValueError):
                    continue
    return None, 1
