"""Staging folders next to the target; those left by killed processes are cleared.

A process locks its folder until it ends, however that happens. An unlocked folder is abandoned.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

_PREFIX = ".torchrlopt."
_OURS = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}")  # the pattern of tempfile's names


class StagingFolder:
    """A new folder inside another one, so that moves stay on one file system.

    Args:
        parent: the other folder.

    Attributes:
        path: path of the new folder.

    Raises:
        OSError: the parent is not writable.
    """

    def __init__(self, parent: Path) -> None:
        _clear_abandoned(parent)
        self.path, self._lock = _made(parent)

    def publish(self, name: str) -> None:
        """Move a file out of the folder, next to it.

        Raises:
            FileExistsError: there is a file of this name.
        """
        target = self.path.parent / name
        try:
            os.link(self.path / name, target)
        except FileExistsError:
            raise
        except OSError:  # no hard links on this file system: an empty file reserves the name
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
            os.replace(self.path / name, target)
        else:
            (self.path / name).unlink()

    def close(self) -> None:
        """Remove the folder and its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _made(parent: Path) -> tuple[Path, int]:
    """Create a folder and return it with the handle that locks it."""
    while True:
        path = Path(tempfile.mkdtemp(dir=parent, prefix=_PREFIX))
        with contextlib.suppress(FileNotFoundError):  # another process cleared it before it was locked
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another process is clearing it
                os.close(handle)
                continue
            except OSError:  # no locks on this file system, so nothing is cleared there
                return path, handle
            if path.exists():
                return path, handle
            os.close(handle)


def _clear_abandoned(parent: Path) -> None:
    """Remove folders of dead processes."""
    names: list[str] = []
    with contextlib.suppress(OSError):  # a writable folder need not be readable
        names = [name for name in os.listdir(parent) if _OURS.fullmatch(name)]
    for name in names:
        with contextlib.suppress(OSError):  # in use, owned by somebody else, or gone
            _clear(parent / name)


def _clear(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(handle).st_uid != os.geteuid():
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
    finally:
        os.close(handle)
