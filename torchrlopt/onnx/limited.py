"""Sandboxed subprocess with limits for untrusted files, which could hang, crash or exhaust the memory.

The subprocess ends with this process and inherits no secrets from its environment. Before it reads the file
it drops the rights to write files, start processes and open sockets, where the kernel can (`sandbox.py`).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import selectors
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from torchrlopt.errors import UnsupportedError
from torchrlopt.onnx.limited_child import DONE
from torchrlopt.processes import ending, module_path, plain_environment, python_executable

logger = logging.getLogger("torchrlopt")

_CHILD = Path(__file__).with_name("limited_child.py")

_STDERR_BYTES = 1 << 16  # kept of standard error; its last line is reported


@dataclasses.dataclass(frozen=True)
class Limits:
    """Resource limits of a subprocess.

    Attributes:
        seconds: wall time; also the processor time per core.
        memory_bytes: address space, in addition to what its modules take.
        answer_bytes: maximum size of its answer, which this process holds in memory.
    """

    seconds: float
    memory_bytes: int
    answer_bytes: int = 64 << 20


def run_limited(module: str, arguments: Sequence[str], data: bytes, limits: Limits, what: str) -> bytes:
    """Call `main(data, arguments)` of a module in a subprocess.

    Args:
        module: its name, or the path of its file, which then runs without importing its package.
        arguments: for `main`.
        data: for `main`.
        limits: of the subprocess.
        what: describes the task in error messages.

    Returns:
        The result of `main`.

    Raises:
        UnsupportedError: the subprocess exceeded a limit or died.
    """
    # The child enforces each limit too, as this process may be stopped or killed.
    numbers = [str(limits.memory_bytes), str(limits.seconds), str(_cpu_s(limits))]
    executable = python_executable()
    if executable is None:
        raise UnsupportedError(
            f"{what} needs a process of its own",
            got="a program with Python in it",
            todo="multiprocessing.set_executable(path of a Python that has torchrlopt)",
        )
    with os.fdopen(os.memfd_create("torchrlopt"), "w+b") as file:
        file.write(data)
        file.seek(0)
        process = subprocess.Popen(
            [executable, "-P", str(_CHILD), str(os.getpid()), module, *numbers, *arguments],
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**plain_environment(os.environ), "PYTHONPATH": module_path()},
            start_new_session=True,  # detach it from the user's terminal
        )
    with process:
        try:
            answer, errors = _read(process, limits)
        except subprocess.TimeoutExpired as error:
            raise UnsupportedError(f"{what} took too long", expected=f"up to {limits.seconds:g} s") from error
        except OverflowError as error:
            raise UnsupportedError(
                f"{what} gives too much", expected=f"up to {limits.answer_bytes} bytes"
            ) from error
        finally:
            process.kill()
    lines = errors.decode(errors="replace").strip().splitlines()
    for line in lines:
        if line.startswith("sandbox: "):
            logger.debug("%s keeps rights that it does not need: %s", what, line)
    if process.returncode == 0 and answer.endswith(DONE):
        return answer.removesuffix(DONE)
    how = f"it {ending(process.returncode)}"
    raise UnsupportedError(f"{what} failed", got=lines[-1] if process.returncode >= 0 and lines else how)


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
            for key, _ in waiting.select(max(0.0, end - time.monotonic())):
                part = os.read(key.fd, 1 << 16)
                key.data.extend(part)
                if not part:
                    waiting.unregister(key.fileobj)
            del errors[:-_STDERR_BYTES]
            if len(answer) > limits.answer_bytes:
                raise OverflowError
    process.wait(max(0.0, end - time.monotonic()))
    return bytes(answer), bytes(errors)


def _cpu_s(limits: Limits) -> int:
    return int(limits.seconds * (os.cpu_count() or 1)) + 1
