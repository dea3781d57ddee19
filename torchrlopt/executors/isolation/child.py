"""The child side of `isolated_process.py`. Nothing imports it.

It forks for each task, so a crash, a hang or memory growth affects only the fork, and no task sees state of
an earlier one. Only the fork imports the runtime: ONNX Runtime and OpenVINO start threads when they are
imported, and a fork does not inherit threads.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

_START_S = 120  # start-up limit; must match `isolated_process.py`
_IDLE_S = 60.0  # it exits after this long without a task; the next task starts a new process
_MOST_BYTES = 1 << 14  # of an answer; with JSON escapes it must fit into one socket message
_MOST_LETTERS = 2000  # characters of an error message
_PACKET = Path(__file__).with_name("packet.py")
_PROCESSES = Path(__file__).resolve().parents[2] / "processes.py"


def main() -> None:
    """`child.py SOCKET MODULE`: do the tasks that arrive on the socket until the other end is closed."""
    handle, path = int(sys.argv[1]), sys.argv[2]
    _ended_after(_START_S)
    # Before the fork: import locks held by another thread, such as one of OpenVINO's, would stay locked.
    packet, processes, module = map(_module, (_PACKET, _PROCESSES, Path(path)))
    if os.fork():
        # The program's direct child exits at once, so the program has no child to wait for at any other time.
        os._exit(0)
    _ended_after(_START_S)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a program that ignores SIGCHLD passes that on
    other = socket.socket(fileno=handle)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError):  # if memory runs out, kill this process and not the program
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    other.send(b"{}")
    signal.alarm(0)
    idle = select.poll()  # `select` cannot handle the large descriptors of programs with many open files
    idle.register(other, select.POLLIN)
    while idle.poll(_IDLE_S * 1000):
        message, handles, *_ = socket.recv_fds(other, _MOST_BYTES, 1)
        if not message:
            return
        task = json.loads(message)
        read, write = os.pipe()
        own = os.getpid()
        worker = os.fork()
        if worker == 0:
            other.close()
            os.close(read)
            processes.killed_with_parent(own)
            _work(packet, module, task, handles[0], write)
        os.close(write)
        os.close(handles[0])
        answer = _answer(other, read)
        if answer is None:  # the program has stopped waiting or is gone
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
            return
        status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            other.send(json.dumps({"status": status, "answer": answer.decode(errors="replace")}).encode())


def _ended_after(seconds: int) -> None:
    """Let the kernel kill this process after this time, whatever it hangs in. Forks must call it again."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.alarm(seconds)


def _module(path: Path) -> Any:
    """Load a module from its file, without the package around it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _answer(other: socket.socket, read: int) -> bytes | None:
    """What the worker writes until it ends; None if the other side has closed the socket."""
    answer = b""
    with os.fdopen(read, "rb", buffering=0) as pipe:
        both = select.poll()
        both.register(other, select.POLLIN)
        both.register(pipe, select.POLLIN)
        while True:
            if any(handle == other.fileno() for handle, _ in both.poll()):
                return None  # closed: nothing is sent before the answer arrives
            part = pipe.read(_MOST_BYTES)
            if not part:
                return answer
            answer = (answer + part)[:_MOST_BYTES]


def _work(packet: Any, module: Any, task: dict[str, Any], handle: int, write: int) -> None:
    """Do a task in the process that was forked for it; does not return."""
    try:
        header, arrays = packet.unpack(handle)
        _limit(int(task["memory_bytes"]))
        answer = json.dumps(getattr(module, task["what"])(header, arrays))
    except MemoryError:
        answer = json.dumps({"error": "no memory was left"})
    except Exception as error:  # noqa: BLE001  # every error is an answer
        answer = json.dumps({"error": f"{type(error).__name__}: {error}"[:_MOST_LETTERS]})
    os.write(write, answer.encode())
    os._exit(0)  # skip whatever the runtime's threads do at interpreter exit


def _limit(memory: int) -> None:
    """Limit further writable memory to this many bytes; runtimes reserve far more address space."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (has,) = (int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
    _, hardest = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = has + memory if hardest == resource.RLIM_INFINITY else min(has + memory, hardest)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, hardest))


if __name__ == "__main__":
    status = 0
    try:
        main()
    except BaseException:  # noqa: BLE001  # for the file that the other side reads
        traceback.print_exc()
        status = 1
    # Exit immediately: if something has imported ONNX Runtime here after all, such as a `sitecustomize`, a
    # normal exit would wait for a thread that exists only in the process before the first fork.
    os._exit(status)
