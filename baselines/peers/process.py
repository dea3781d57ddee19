"""Starts the process of a peer and talks to it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from baselines.peers.case import Case

_ROOT = Path(__file__).resolve().parents[2]


class PeerError(Exception):
    """A peer could not do what it was asked; the message says why, on one line."""


class WorkerProcess:
    """A `baselines.peers.worker`; stopped when closed.

    Args:
        case: The peer and model that it serves.
        folder: An empty folder for its files.
        caches: Where compilers keep what they have compiled.
        timeout_s: Longest wait for an answer.
    """

    def __init__(self, case: Case, folder: Path, caches: Path, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._log = (folder / "log.txt").open("w+")
        own = caches / case.label
        # OpenMP threads wait as by default. Sleeping at once (OMP_WAIT_POLICY=PASSIVE) would spare the
        # others milliseconds of spinning, but was seen to make eager PyTorch itself up to 1.8 times slower.
        environment = os.environ | {
            "OMP_NUM_THREADS": str(case.threads),
            "MKL_NUM_THREADS": str(case.threads),
            "PYTHONPATH": os.pathsep.join([str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
            "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": str(case.threads),
            "TORCHRLOPT_CACHE_DIR": str(own / "torchrlopt"),
        }
        command = [sys.executable, "-m", "baselines.peers.worker", json.dumps(asdict(case)), str(folder)]
        # A session of its own, so that compilers it has started end with it.
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
        """Sends a command and waits for the reply.

        Raises:
            PeerError: The peer raised, died, or took too long.
        """
        commands, replies = self._process.stdin, self._process.stdout
        if commands is None or replies is None:
            raise PeerError("the worker's pipes are closed")
        try:
            commands.write(json.dumps({"do": do, **arguments}) + "\n")
            commands.flush()
        except BrokenPipeError:
            raise PeerError(self._obituary()) from None
        is_ready, _, _ = select.select([replies], [], [], self._timeout_s)
        if not is_ready:
            raise PeerError(f"no answer to {do!r} within {self._timeout_s:g} s")
        line = replies.readline()
        if not line:
            raise PeerError(self._obituary())
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise PeerError(reply["error"])
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
        """Ends the process and all that it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what was written to a dead process
                    pipe.close()
        self._log.close()
