"""Helpers for processes: workers end with their parent and inherit no secrets, forks inherit no locked lock.

Importable without the package: it uses only the standard library.
"""

from __future__ import annotations

import ctypes
import multiprocessing.spawn
import os
import signal
import sys
import threading
import weakref
from collections.abc import Mapping

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_KEPT = ("PATH", "LANG", "TZ", "TMPDIR")
_KEPT_BEGINNINGS = (
    "PYTHON", "LD_", "LC_",  # where Python and its libraries are, and text encoding
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ATEN_", "MALLOC_",  # threads and memory
    "ASAN_", "LSAN_", "TSAN_", "UBSAN_",  # sanitizers, which are preloaded
    "TORCHRLOPT_",
)  # fmt: skip


def end_with_parent() -> None:
    """Make this `multiprocessing` process exit when its parent is gone; call it at start-up.

    Otherwise the workers of a pool would wait for work for ever and keep their memory. This relies on a
    Python thread, so it is late if native code holds the GIL or hangs: see `killed_with_parent`.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_for_the_end_of, args=(parent,), daemon=True).start()


def _wait_for_the_end_of(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)


def killed_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the *thread* that started it ends; call it at start-up.

    It works however that thread ends and whatever this process is doing. It is meant for a process that a
    thread starts and waits for; a process that outlives its starting thread needs `end_with_parent`.

    Args:
        parent: process id of the parent, as the parent sees it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended earlier, so no signal would come
        os.kill(os.getpid(), signal.SIGKILL)


def killed_after(seconds: float) -> None:
    """Have the kernel end this process (SIGALRM) after this much wall-clock time."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})  # the signal mask is inherited
    signal.setitimer(signal.ITIMER_REAL, seconds)


def python_executable() -> str | None:
    """Return the Python executable of this process, or None in a program that embeds Python."""
    known = multiprocessing.spawn.get_executable()
    name = os.fsdecode(known) if known else ""
    is_program = getattr(sys, "frozen", False) and name == sys.executable
    return None if is_program else name or None


def module_path() -> str:
    """Return a `PYTHONPATH` with which another Python finds the same modules as this one.

    The current directory is left out, unless it contains this package.
    """
    entries = [os.path.abspath(entry) for entry in sys.path if entry]
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.pathsep.join(entries if own in entries else [*entries, own])


def ending(status: int) -> str:
    """Describe how a process ended, as a sentence fragment: "ended with SIGSEGV".

    Args:
        status: return code as in `subprocess`: if negative, minus the number of a signal.
    """
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"ended with {signal.Signals(-status).name}"
    except ValueError:
        return f"ended with signal {-status}"


def plain_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that a compute-only process needs: no secrets, no home, no GPU.

    Args:
        environment: the environment of the program.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name in _KEPT or name.startswith(_KEPT_BEGINNINGS)
    }
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}


_WITH_LOCKS: weakref.WeakKeyDictionary[object, tuple[str, ...]] = weakref.WeakKeyDictionary()


def renew_locks_in_forks(holder: object, *names: str) -> None:
    """Have a forked child replace locks: the threads that held them do not live there.

    Args:
        holder: hashed by identity.
        names: its attributes, of `threading.Lock`.
    """
    _WITH_LOCKS[holder] = names


def _renew_locks() -> None:
    for holder, names in _WITH_LOCKS.items():
        for name in names:
            setattr(holder, name, threading.Lock())


os.register_at_fork(after_in_child=_renew_locks)
