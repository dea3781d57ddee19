"""Runs what a user's file could hang, crash or fill the memory with in a process of its own, with limits.

The process ends with this one, and knows no secrets of its environment. Before it looks at the file it drops
the rights to write files, to start processes and to open sockets, where the kernel can (`sandbox.py`).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from torchrlopt.errors import UnsupportedError
from torchrlopt.processes import plain_environment

logger = logging.getLogger("torchrlopt")

_CHILD = Path(__file__).with_name("limited_child.py")


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a process may take.

    Attributes:
        seconds: wall time; as much processor time on each core.
        memory_bytes: address space, beyond what its modules take.
    """

    seconds: float
    memory_bytes: int


def run_limited(module: str, arguments: Sequence[str], data: bytes, limits: Limits, what: str) -> bytes:
    """Call `main(data, arguments)` of a module in a new process.

    Args:
        module: its name, or the path of its file, which is run without the package around it.
        arguments: for `main`.
        data: for `main`.
        limits: of the process.
        what: what is done, for the message.

    Returns:
        What `main` returned.

    Raises:
        UnsupportedError: the process took too long or too much, or died.
    """
    # Each limit holds in the child, too: this process may be stopped or killed.
    numbers = [str(limits.memory_bytes), str(limits.seconds), str(_cpu_s(limits))]
    command = [sys.executable, "-P", str(_CHILD), str(os.getpid()), module, *numbers]
    # The child finds the modules that this process finds; the folder it runs in is not among them by itself.
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    try:
        done = subprocess.run(
            [*command, *arguments],
            input=data,
            capture_output=True,
            timeout=limits.seconds,
            env={**plain_environment(os.environ), "PYTHONPATH": path},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnsupportedError(f"{what} took too long", expected=f"up to {limits.seconds:g} s") from error
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    for line in lines:
        if line.startswith("sandbox: "):
            logger.debug("%s keeps rights that it does not need: %s", what, line)
    if done.returncode == 0:
        return done.stdout
    raise UnsupportedError(
        f"{what} failed", got=_death(done.returncode) or (lines or ["no reason given"])[-1]
    )


def _cpu_s(limits: Limits) -> int:
    return int(limits.seconds * (os.cpu_count() or 1)) + 1


def _death(code: int) -> str:
    """The signal that ended a process; empty where it ended by itself."""
    if code >= 0:
        return ""
    try:
        return f"it died of {signal.Signals(-code).name}"
    except ValueError:
        return f"it died of signal {-code}"
