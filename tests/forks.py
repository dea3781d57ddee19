"""Child processes that run a function of a test; they are forked, so nothing is imported again."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65_534


def fork(work: Callable[[], object]) -> int:
    """The process id of a child that runs `work` and ends with status 0, or 1 where it raises."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - told by the status; nothing may reach the test that forked
        traceback.print_exc()
    finally:
        os._exit(status)


def wait(child: int, seconds: float = 120.0) -> int:
    """The status of a child that ends; one that hangs is killed, and has the status -SIGKILL."""
    deadline = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)


def run(*works: Callable[[], object]) -> None:
    """Run functions in a child each, all at once; each has to end well."""
    children = [fork(work) for work in works]
    assert [wait(child) for child in children] == [0] * len(works)


def as_ordinary_user(work: Callable[[], object]) -> None:
    """`run`, without the rights of root, for whom no directory is read-only."""

    def without_rights() -> None:
        if os.getuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        work()

    run(without_rights)


@contextmanager
def ordinary_directory() -> Iterator[Path]:
    """A directory that belongs to the user as whom `as_ordinary_user` runs."""
    with tempfile.TemporaryDirectory() as name:
        if os.getuid() == 0:
            os.chown(name, NOBODY, NOBODY)
        yield Path(name)
