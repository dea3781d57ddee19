"""Makes a machine busy on purpose: a neighbour that takes a core from time to time, and a quota."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

_SPIN = """
import time
while True:
    end = time.perf_counter() + {seconds}
    while time.perf_counter() < end:
        pass
    time.sleep({seconds})
"""

#: Length of the neighbour's turns, in seconds: so long it takes a core, and so long it sleeps.
TURN_S = 0.3

#: Cores that the quota allows.
QUOTA_CORES = 1.5

_PERIOD_US = 100_000

Command = Callable[[list[str]], list[str]]
"""Makes the command that runs another one under a condition."""


@contextmanager
def _neighbour() -> Iterator[Command]:
    process = subprocess.Popen([sys.executable, "-c", _SPIN.format(seconds=TURN_S)])
    try:
        yield lambda command: command
    finally:
        process.kill()
        process.wait()


@contextmanager
def _quota() -> Iterator[Command]:
    """A control group of its own; raises OSError where this user may not make one."""
    root, name = Path("/sys/fs/cgroup"), f"torchrlopt_{os.getpid()}"
    quota_us = int(QUOTA_CORES * _PERIOD_US)
    if (root / "cgroup.controllers").exists():
        folder, limits = root / name, {"cpu.max": f"{quota_us} {_PERIOD_US}"}
    else:
        folder = root / "cpu" / name
        limits = {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(quota_us)}
    folder.mkdir()
    try:
        for file, value in limits.items():
            (folder / file).write_text(value)
        join = f'echo $$ > {folder / "cgroup.procs"} && exec "$@"'
        yield lambda command: ["sh", "-c", join, "sh", *command]
    finally:
        folder.rmdir()


CONDITIONS: dict[str, Callable[[], AbstractContextManager[Command]]] = {
    "quiet": lambda: nullcontext(lambda command: command),
    "neighbour": _neighbour,
    "quota": _quota,
}
"""What the machine is like, by name."""
