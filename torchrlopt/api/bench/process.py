"""A process that is asked one thing after the other, in JSON, one line each: what is measured has its own.

Between commands it waits in a blocking read and uses no processor, so that several can take turns.
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
    """A process could not do what it was asked; the message says why, on one line."""


class Worker:
    """A process that obeys commands on its standard input; stopped when closed.

    Args:
        command: that starts it.
        environment: of the process.
        folder: for its log.
        timeout_s: longest wait for an answer.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, timeout_s: float
    ) -> None:
        self._timeout_s = timeout_s
        self._log = (folder / "log.txt").open("w+")
        # A session of its own, so that compilers it has started end with it, and Ctrl-C is ours alone.
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
        """How the process ended and the last thing it said."""
        code = self._process.wait()
        ending = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        self._log.seek(0)
        lines = self._log.read().split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return f"process {ending}: {last[:300]}"

    def close(self) -> None:
        """End the process and all that it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what was written to a dead process
                    pipe.close()
        self._log.close()
