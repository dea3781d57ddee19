"""Folders for what is being written, beside where it goes; those that a killed process left are cleared.

A folder is locked for as long as its process lives, however that ends. One that is not locked is nobody's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

_PREFIX = ".torchrlopt."
_OURS = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}")  # as tempfile names them


class StagingFolder:
    """A new folder inside another one, which is on the file system that files are moved to.

    Args:
        parent: the other one.

    Attributes:
        path: of the folder.

    Raises:
        OSError: the other folder cannot be written to.
    """

    def __init__(self, parent: Path) -> None:
        _clear_abandoned(parent)
        self.path, self._lock = _made(parent)

    def close(self) -> None:
        """Remove the folder with what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _made(parent: Path) -> tuple[Path, int]:
    """A folder and the handle that locks it."""
    while True:
        path = Path(tempfile.mkdtemp(dir=parent, prefix=_PREFIX))
        with contextlib.suppress(FileNotFoundError):  # cleared by another process before it was locked
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # it is being cleared
                os.close(handle)
                continue
            except OSError:  # a file system without locks: nothing is cleared there
                return path, handle
            if path.exists():
                return path, handle
            os.close(handle)


def _clear_abandoned(parent: Path) -> None:
    """Remove folders whose process is gone, and the empty files with which they held names for their data."""
    names: list[str] = []
    with contextlib.suppress(OSError):  # a folder that can be written to need not be one to read
        names = [name for name in os.listdir(parent) if _OURS.fullmatch(name)]
    for name in names:
        with contextlib.suppress(OSError):  # in use, of somebody else, or gone
            _clear(parent / name)


def _clear(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(handle).st_uid != os.geteuid():
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in os.listdir(handle):
            held = path.parent / name
            with contextlib.suppress(FileNotFoundError):
                status = held.lstat()
                # Whatever else is there by this name has content, or is no plain file of ours.
                if stat.S_ISREG(status.st_mode) and status.st_size == 0 and status.st_uid == os.geteuid():
                    held.unlink()
        shutil.rmtree(path)
    finally:
        os.close(handle)
