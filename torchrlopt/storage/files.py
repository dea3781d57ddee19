"""Reads and writes untrusted files safely: regular files only, bounded in size, written atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from torchrlopt.errors import OptionsError


def read_bounded(path: Path, most: int) -> bytes:
    """Read a regular file without blocking and in bounded memory.

    Args:
        path: the file; links are followed.
        most: maximum size in bytes.

    Raises:
        OSError: it cannot be read, is not a regular file (a pipe, a device, a directory), or is larger
            (EFBIG).
    """
    _require_plain(os.stat(path), path)  # stat first: merely opening a pipe wakes its writer
    with open(path, "rb", opener=_without_waiting) as file:
        status = os.fstat(file.fileno())
        _require_plain(status, path)
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"{status.st_size} bytes, expected up to {most}", str(path))
        content = file.read(status.st_size + 1)
        if len(content) > status.st_size:  # it grows, or has no size, as in /proc
            content += file.read(most + 1 - len(content))
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))
    return content


def write_whole(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file atomically: readers see the old or the new content, even after a crash.

    A link is replaced, not followed. The new file inherits the mode of the file that it replaces.

    Args:
        path: the file.
        data: the new content.
        mode: mode of a new file, before the user's umask; an inherited mode is limited to these bits.

    Raises:
        OptionsError: the path exists and is not a file.
        OSError: it cannot be written.
    """
    require_replaceable(path)
    name = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    # Let the system apply the umask on creation: reading it means changing it, for all threads.
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), path.stat().st_mode & mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # before the rename
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def require_replaceable(path: Path) -> None:
    """Refuse to replace a pipe, a device, a socket or a directory.

    Raises:
        OptionsError: the path is one of these.
    """
    if path.exists() and not path.is_file():
        raise OptionsError("the result would replace something that is no file", where=str(path))


def _without_waiting(name: str, flags: int) -> int:
    """Open without blocking: the file may have become a pipe or a terminal since it was checked."""
    return os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _require_plain(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "no plain file", str(path))
