"""Subprocesses with limits, for work that could hang, crash or exhaust the memory.

A subprocess ends with this process. One that works on untrusted files inherits no secrets from the
environment, and before it reads them it drops the rights to write files, start processes and open sockets,
where the kernel can (`sandbox.py`).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from torchrlopt.errors import UnsupportedError
from torchrlopt.limited.child import CONFINED, DONE, NOTE, TRUSTED
from torchrlopt.plain_text import printable
from torchrlopt.processes import ending, module_path, plain_environment, python_executable

logger = logging.getLogger("torchrlopt")

_CHILD = Path(__file__).with_name("child.py")

_STDERR_BYTES = 1 << 16  # kept of standard error; its last line is reported


@dataclasses.dataclass(frozen=True)
class Limits:
    """Resource limits of a subprocess.

    Attributes:
        seconds: wall time; also the processor time per core.
        memory_bytes: address space, in addition to what its modules take.
        answer_bytes: maximum size of its answer, which this process holds in memory.
        is_confined: whether it drops its rights. One that does not also limits its own memory.
    """

    seconds: float
    memory_bytes: int
    answer_bytes: int = 64 << 20
    is_confined: bool = True


class Death(Exception):  # noqa: N818  # it says how a subprocess ended
    """A subprocess ended without an answer.

    Args:
        how: how it ended, as a clause.
        detail: the last line that it wrote to its standard error.
        is_lasting: whether the same is expected of the next one.
    """

    def __init__(self, how: str, detail: str = "", is_lasting: bool = True) -> None:
        super().__init__(how)
        self.how = how
        self.detail = detail
        self.is_lasting = is_lasting


def run_limited(module: str, arguments: Sequence[str], data: bytes, limits: Limits, what: str) -> bytes:
    """Call `main(data, arguments)` of a module in a subprocess.

    `module` is a name, or the path of a file, which then runs without importing its package.

    Raises:
        UnsupportedError: the subprocess exceeded a limit or died.
    """
    with os.fdopen(os.memfd_create("torchrlopt"), "w+b") as file:
        file.write(data)
        file.seek(0)
        try:
            return call_limited(module, arguments, file.fileno(), limits, what)
        except Death as death:
            got = f"{death.how}: {death.detail}" if death.detail else death.how
            raise UnsupportedError(f"{what} failed", got=got) from death


def call_limited(module: str, arguments: Sequence[str], data: int, limits: Limits, what: str) -> bytes:
    """The same as `run_limited`, with the data as the handle of a file in memory.

    A subprocess that is not confined gets the handle; the other gets its content.

    Raises:
        Death: the subprocess exceeded a limit or died.
        UnsupportedError: there is no Python to start.
    """
    cpu_s = int(limits.seconds * (os.cpu_count() or 1)) + 1
    # The child enforces each limit too, as this process may be stopped or killed.
    mode = CONFINED if limits.is_confined else TRUSTED
    numbers = [mode, str(limits.memory_bytes), str(limits.seconds), str(cpu_s)]
    executable = python_executable()
    if executable is None:
        raise UnsupportedError(
            f"{what} needs a subprocess",
            got="a program with Python in it",
            todo="multiprocessing.set_executable(path of a Python that has torchrlopt)",
        )
    environment = plain_environment(os.environ) if limits.is_confined else os.environ
    try:
        process = subprocess.Popen(
            [executable, "-P", str(_CHILD), str(os.getpid()), module, *numbers, *arguments],
            stdin=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, "PYTHONPATH": module_path()},
            start_new_session=True,  # detach it from the user's terminal
        )
    except OSError as error:
        raise UnsupportedError(f"{what} needs a subprocess", got=str(error)) from error
    with process:
        try:
            answer, errors = _read(process, limits)
        except subprocess.TimeoutExpired as error:
            raise Death(f"it was not done after {limits.seconds:g} s") from error
        except OverflowError as error:
            raise Death(f"it answered more than {limits.answer_bytes} bytes") from error
        finally:
            process.kill()
    lines = errors.decode(errors="replace").strip("\0\n ").splitlines()
    for line in lines:
        if line.startswith(NOTE):
            logger.debug("%s keeps rights that it does not need: %s", what, printable(line))
    if process.returncode == 0 and answer.endswith(DONE):
        return answer.removesuffix(DONE)
    detail = lines[-1][:500] if lines and not lines[-1].startswith(NOTE) else ""
    if process.returncode == 0:
        # A program that ignores SIGCHLD gets no status: it may have been killed, as below.
        is_known = signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN
        raise Death("its process ended without an answer", detail, is_known)
    # SIGKILL comes from the system when memory runs out, or from a user of this machine.
    is_lasting = process.returncode != -signal.SIGKILL
    raise Death(f"its process {ending(process.returncode)}", detail, is_lasting)


def _read(process: subprocess.Popen[bytes], limits: Limits) -> tuple[bytes, bytes]:
    """Read a subprocess's output until it ends: its answer and the end of its standard error.

    Raises:
        subprocess.TimeoutExpired: it did not finish in time.
        OverflowError: it wrote too much.
    """
    answer, errors = bytearray(), bytearray()
    end = time.monotonic() + limits.seconds
    with selectors.DefaultSelector() as waiting:
        for pipe, found in ((process.stdout, answer), (process.stderr, errors)):
            assert pipe is not None
            waiting.register(pipe, selectors.EVENT_READ, found)
        while waiting.get_map():
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(process.args, limits.seconds)
            # A thread that is to end notices it between two waits.
            for key, _ in waiting.select(min(1.0, max(0.0, end - time.monotonic()))):
                part = os.read(key.fd, 1 << 16)
                key.data.extend(part)
                if not part:
                    waiting.unregister(key.fileobj)
            del errors[:-_STDERR_BYTES]
            if len(answer) > limits.answer_bytes:
                raise OverflowError
    process.wait(max(0.0, end - time.monotonic()))
    return bytes(answer), bytes(errors)
