"""Staging folders next to the target; those left by killed processes are cleared.

A process locks its folder until it ends, however that happens. An unlocked folder is abandoned.
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
_TAKEN = ".taken"  # a file that names the empty placeholder file next to the folder
_LONGEST_NOTE = 400
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

    def take(self, name: str) -> None:
        """Reserve a name next to this folder with an empty file, which is removed if this process is killed.

        Raises:
            FileExistsError: there is a file of this name.
        """
        handle = os.open(self.path.parent / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        try:
            (self.path / _TAKEN).write_bytes(_identity(os.fstat(handle)) + os.fsencode(name))
        finally:
            os.close(handle)

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
    """Remove folders of dead processes, and the empty files that reserved names for their data."""
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
        with contextlib.suppress(FileNotFoundError):
            _give_back(path / _TAKEN)
        shutil.rmtree(path)
    finally:
        os.close(handle)


def _give_back(note: Path) -> None:
    """Remove the empty file that a note names. Archives may contain such folders, with arbitrary names."""
    status = note.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LONGEST_NOTE:
        return
    content = note.read_bytes()
    held = note.parent.parent / os.fsdecode(content.split(b" ", 2)[-1])
    status = held.lstat()
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_size == 0
    if is_ours and content == _identity(status) + os.fsencode(held.name):
        held.unlink()


def _identity(status: os.stat_result) -> bytes:
    return f"{status.st_dev} {status.st_ino} ".encode()
