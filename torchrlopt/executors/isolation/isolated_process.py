"""Runs tasks that may crash, hang or exhaust memory in a separate process.

The process is a fresh Python that imports the runtime and little else (`child.py`), never the user's script
or torch. It ends when its socket is closed, and thus with this process, however that ends. It has its own
session, so Ctrl-C in a terminal reaches this process only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import signal
import socket
import subprocess
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchrlopt.errors import UnsupportedError
from torchrlopt.executors.isolation.packet import Arrays, pack
from torchrlopt.processes import ending, module_path, python_executable

_CHILD = Path(__file__).with_name("child.py")
_START_S = 120.0  # imports from a slow disk, on a busy machine
_MOST_BYTES = 1 << 17  # of an answer, including JSON escapes
_STDERR_BYTES = 1 << 16
_STDERR = 2


@dataclasses.dataclass(frozen=True)
class Task:
    """A task for the process.

    Attributes:
        what: name of a function in the module; it takes `header` and `arrays` and returns a JSON-serialisable
            dictionary. An error of the runtime is also an answer, with its text under "error".
        header: JSON-serialisable.
        arrays: contiguous.
        seconds: wall time after which the task counts as hanging.
        memory_bytes: memory limit in addition to the arrays.
    """

    what: str
    header: Mapping[str, Any]
    arrays: Arrays
    seconds: float
    memory_bytes: int


class Death(Exception):  # noqa: N818  # it is an answer
    """The process ended without an answer.

    Args:
        how: what happened, such as "its process ended with SIGSEGV".
        detail: the last line on its standard error; empty if there is none.
        is_lasting: whether the same task is expected to fail again. A lack of memory may be temporary; a
            timeout many times longer than the task takes is not explained by a busy machine.
    """

    def __init__(self, how: str, detail: str = "", is_lasting: bool = True) -> None:
        super().__init__(how)
        self.how = how
        self.detail = detail
        self.is_lasting = is_lasting


class IsolatedProcess:
    """A process for tasks with one runtime, started with the first task; thread-safe.

    Args:
        module: path of the file with the task functions. It is run without the package around it: it may
            import numpy, and its functions the runtime.
    """

    def __init__(self, module: Path) -> None:
        self._module = module
        self._other: socket.socket | None = None
        self._stderr = -1
        self._lock = threading.Lock()
        _PROCESSES.add(self)

    def do(self, task: Task) -> dict[str, Any]:
        """Run a task and return its answer.

        Raises:
            Death: the process ended without an answer.
            UnsupportedError: no process could be started.
            OSError: there is not enough memory for the arrays.
        """
        with self._lock:
            try:
                answer = self._asked(task) if self._other is not None else None
                if answer is None:  # it exited after being idle, or somebody killed it
                    self._begin()
                    answer = self._asked(task)
            except BaseException:  # any kind, because Ctrl-C must not leave a task behind
                self.end()
                raise
            if answer is None:
                self.end()
                raise Death("its process was ended from outside", is_lasting=False)
            return self._outcome(answer)

    def end(self) -> None:
        """End the process, whatever it is doing; the next task starts a new one."""
        if self._other is not None:
            self._other.close()
            os.close(self._stderr)
        self._other = None

    def forget(self) -> None:
        """Drop the process in a fork: it belongs to the parent, where another thread may hold the lock."""
        self._lock = threading.Lock()
        self.end()

    def _begin(self) -> None:
        self.end()
        ours, theirs = map(_beyond_streams, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        stderr = _bounded_file()
        self._other, self._stderr = ours, stderr
        with theirs:
            try:
                process = subprocess.Popen(
                    [
                        _executable(),
                        "-P",
                        "-W",
                        "ignore",
                        str(_CHILD),
                        str(theirs.fileno()),
                        str(self._module),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": module_path()},
                )
            except OSError as error:
                raise _no_process(str(error)) from error
        with process:  # it exits as soon as it has forked, see `child.main`
            try:
                ready = _message(ours, _START_S)
            except TimeoutError as error:
                process.kill()
                raise _no_process(f"it was not ready after {_START_S:.0f} s") from error
        if ready is None:
            raise _no_process(_last_line(stderr) or "it ended before it was ready")

    def _asked(self, task: Task) -> dict[str, Any] | None:
        """Status and answer of the process; None if the process ended without one.

        Raises:
            Death: the task timed out.
        """
        assert self._other is not None
        os.lseek(self._stderr, 0, os.SEEK_SET)  # the file offset is shared with the child
        descriptor = pack(task.header, task.arrays)
        try:
            text = json.dumps({"what": task.what, "memory_bytes": task.memory_bytes}).encode()
            socket.send_fds(self._other, [text], [descriptor])
        except (BrokenPipeError, ConnectionResetError):
            return None
        finally:
            os.close(descriptor)
        try:
            return _message(self._other, task.seconds)
        except TimeoutError as error:
            raise Death(f"it was not done after {task.seconds:.0f} s") from error

    def _outcome(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        status = answer["status"]
        if status != 0:
            # SIGKILL comes from the system when memory runs out, or from a user of this machine.
            raise Death(
                f"its process {ending(status)}",
                _last_line(self._stderr),
                is_lasting=status != -signal.SIGKILL,
            )
        try:
            found = json.loads(answer["answer"])
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Death("its process ended without an answer", _last_line(self._stderr))
        return found


_PROCESSES: weakref.WeakSet[IsolatedProcess] = weakref.WeakSet()


def _forget_those_of_the_parent() -> None:
    for each in _PROCESSES:
        each.forget()


os.register_at_fork(after_in_child=_forget_those_of_the_parent)


def _beyond_streams(end: socket.socket) -> socket.socket:
    """Move a socket off the standard stream descriptors, which the child has its own of."""
    if end.fileno() > _STDERR:
        return end
    with end:
        return socket.socket(fileno=fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1))


def _message(other: socket.socket, seconds: float) -> dict[str, Any] | None:
    """The next message; None if the other side has closed the socket.

    Raises:
        TimeoutError: no message arrived in time.
    """
    other.settimeout(seconds)
    try:
        data = other.recv(_MOST_BYTES)
    except ConnectionResetError:
        return None
    found: dict[str, Any] | None = json.loads(data) if data else None
    return found


def _executable() -> str:
    name = python_executable()
    if name is None:
        raise _no_process("this process is a program with Python in it")
    return name


def _no_process(reason: str) -> UnsupportedError:
    return UnsupportedError(
        "no process could be begun in which the runtime is tried first",
        got=reason,
        todo="multiprocessing.set_executable(path of a Python that has the runtime)",
    )


def _bounded_file() -> int:
    """An in-memory file that cannot grow, whatever is written."""
    descriptor = os.memfd_create("torchrlopt", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, _STDERR_BYTES)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return descriptor


def _last_line(stderr: int) -> str:
    with contextlib.suppress(OSError):
        end = os.lseek(stderr, 0, os.SEEK_CUR)
        lines = os.pread(stderr, end, 0).decode(errors="replace").strip("\0\n ").splitlines()
        return lines[-1][:500] if lines else ""
    return ""
