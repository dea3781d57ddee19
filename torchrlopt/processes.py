"""Processes that work for another one: they end with it, take no longer than they may, and know no secrets.

Importable without the package around it: only the standard library is used.
"""

from __future__ import annotations

import ctypes
import multiprocessing.spawn
import os
import signal
import sys
import threading
from collections.abc import Mapping

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_KEPT = ("PATH", "LANG", "TZ", "TMPDIR")
_KEPT_BEGINNINGS = (
    "PYTHON", "LD_", "LC_",  # how Python and its libraries are found, how text is encoded
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ATEN_", "MALLOC_",  # how threads and memory are used
    "ASAN_", "LSAN_", "TSAN_", "UBSAN_",  # sanitizers, which are preloaded
    "TORCHRLOPT_",
)  # fmt: skip


def end_with_parent() -> None:
    """For the beginning of a process of `multiprocessing`: it ends when the one that began it is gone.

    A pool's workers wait for work for ever otherwise, each with its memory. Where native code keeps Python
    from running threads, or hangs, this comes late: see `killed_with_parent`.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_for_the_end_of, args=(parent,), daemon=True).start()


def _wait_for_the_end_of(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)


def killed_with_parent(parent: int) -> None:
    """For the beginning of a process: the kernel kills it when the *thread* that started it ends.

    However that ends, and whatever this process does at that moment. For a process that a thread starts and
    waits for; one that outlives the thread it was started in needs `end_with_parent`.

    Args:
        parent: id of the process that started this one, as that one knows it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before, and nobody would tell
        os.kill(os.getpid(), signal.SIGKILL)


def killed_after(seconds: float) -> None:
    """The kernel ends this process (SIGALRM) after so much time, asleep or not."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})  # the mask is that of who started it
    signal.setitimer(signal.ITIMER_REAL, seconds)


def python_executable() -> str | None:
    """The Python that runs modules as this process does; None in a program that has Python inside."""
    known = multiprocessing.spawn.get_executable()
    name = os.fsdecode(known) if known else ""
    is_program = getattr(sys, "frozen", False) and name == sys.executable
    return None if is_program else name or None


def module_path() -> str:
    """`PYTHONPATH` with which another Python finds the modules that this one finds.

    The folder that it happens to run in is left out, unless this package is there.
    """
    entries = [os.path.abspath(entry) for entry in sys.path if entry]
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.pathsep.join(entries if own in entries else [*entries, own])


def ending(status: int) -> str:
    """How a process ended, as a sentence continues: "ended with SIGSEGV".

    Args:
        status: of `subprocess`: below 0 the number of a signal.
    """
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"ended with {signal.Signals(-status).name}"
    except ValueError:
        return f"ended with signal {-status}"


def plain_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a process needs of an environment that only computes: no secrets, no home, no GPU.

    Args:
        environment: of the program.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name in _KEPT or name.startswith(_KEPT_BEGINNINGS)
    }
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
