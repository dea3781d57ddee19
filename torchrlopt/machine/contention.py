"""Measures how long this process waited for processors, which invalidates concurrent timings.

The kernel counts how long each thread was runnable but not running (`schedstat`) and how long a quota
throttled each control group (`cpu.stat`). This does not detect a neighbour on the same host that takes away a
whole virtual processor (steal time).
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

_TASKS = "/proc/self/task"

_MOST_THREADS = 64  # a reading takes about ten microseconds per thread

# Even on an idle machine, threads wait for microseconds when they are woken.
_CALM_SHARE, _CALM_NS = 0.02, 30_000


def is_calm(waited: int, wall: int) -> bool:
    """Whether a timing is valid that took `wall` and waited for so long, both in nanoseconds."""
    return waited <= _CALM_SHARE * wall + _CALM_NS


def waited_ns() -> int:
    """Return the total time that threads of this process waited for a processor, in nanoseconds.

    Because of other processes on the same processors, or of a CPU quota. 0 if the system does not report it.
    Only the difference of two readings is meaningful; it is too small if a thread ended in between. Of
    hundreds of threads, only the oldest are counted: those of PyTorch and of the runtimes live as long as the
    process.
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
        except (OSError, IndexError, ValueError):  # the thread has ended, or there are no statistics
            continue
    return total + _held_back_ns()


def _age(thread: str) -> tuple[bool, int]:
    """Sort key for thread ids, oldest first: ids increase and wrap around to 1."""
    return int(thread) < os.getpid(), int(thread)


def own_time() -> float:
    """Return a clock for budgets, in seconds, that stops while other processes have the processor.

    It is wall time minus the time in which this thread was runnable but not running. Only differences of
    readings by one thread are meaningful. The searches of the core use the same clock.
    """
    return time.perf_counter() - own_waited_ns() / 1e9


def own_waited_ns() -> int:
    """Return `waited_ns` of this thread only, without the quota; 0 if the system does not report it."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _held_back_ns() -> int:
    """Return the time throttled by the quota of the control group, in nanoseconds."""
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
    """Return the `cpu.stat` of this process's control group and its unit in nanoseconds."""
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
            # Inside a container, the reported name is the one outside, and the mounted root is the group
            # itself.
            for path in (folder / name.lstrip("/") / "cpu.stat", folder / "cpu.stat"):
                try:
                    if word in path.read_text(encoding="ascii"):
                        return path, unit_ns
                except (OSError, ValueError):
                    continue
    return None, 1
