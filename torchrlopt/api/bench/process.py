"""A worker process that answers commands one by one, as JSON lines; each contestant is measured in its own.

Between commands it waits in a blocking read and uses no processor, so that several workers can alternate.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


class WorkerError(Exception):
    """A worker could not carry out a command; the message gives the reason on one line."""


class Worker:
    """A process that executes commands from its standard input; killed on close.

    Args:
        command: that starts the process.
        environment: of the process.
        folder: for its log.
        timeout_s: longest wait for an answer.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, timeout_s: float
    ) -> None:
        self._timeout_s = timeout_s
        self._log = (folder / "log.txt").open("w+")
        # In its own session, so that compilers it has started end with it, and only we get Ctrl-C.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for the reply.

        Raises:
            WorkerError: the process raised, died, or took too long.
        """
        commands, replies = self._process.stdin, self._process.stdout
        if commands is None or replies is None:
            raise WorkerError("the worker's pipes are closed")
        try:
            commands.write(json.dumps({"do": do, **arguments}) + "\n")
            commands.flush()
        except BrokenPipeError:
            raise WorkerError(self._obituary()) from None
        is_ready, _, _ = select.select([replies], [], [], self._timeout_s)
        if not is_ready:
            raise WorkerError(f"no answer to {do!r} within {self._timeout_s:g} s")
        line = replies.readline()
        if not line:
            raise WorkerError(self._obituary())
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply

    def _obituary(self) -> str:
        """Return how the process ended and the last line of its log."""
        code = self._process.wait()
        ending = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        self._log.seek(0)
        lines = self._log.read().split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return f"process {ending}: {last[:300]}"

    def close(self) -> None:
        """Kill the process and everything that it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # unflushed output to a dead process
                    pipe.close()
        self._log.close()
