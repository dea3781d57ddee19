"""Runs what a user's file could hang, crash or fill the memory with in a process of its own, with limits."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from torchrlopt.errors import UnsupportedError

_CHILD = Path(__file__).with_name("limited_child.py")


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a process may take.

    Attributes:
        seconds: wall time; as much on each core.
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
    command = [sys.executable, "-P", str(_CHILD), module, str(limits.memory_bytes), str(_cpu_s(limits))]
    # The child finds the modules that this process finds; the folder it runs in is not among them by itself.
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    try:
        done = subprocess.run(
            [*command, *arguments],
            input=data,
            capture_output=True,
            timeout=limits.seconds,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnsupportedError(f"{what} took too long", expected=f"up to {limits.seconds:g} s") from error
    if done.returncode == 0:
        return done.stdout
    lines = done.stderr.decode(errors="replace").strip().splitlines()
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
