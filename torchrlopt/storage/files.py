"""Reads and writes whole files that others may have a hand in: plain ones only, bounded, all or nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from torchrlopt.errors import OptionsError


def read_bounded(path: Path, most: int) -> bytes:
    """The content of a plain file; never waits, and takes no more memory than the limit allows.

    Args:
        path: the file; links are followed.
        most: bytes that it may have.

    Raises:
        OSError: it cannot be read, is no plain file (a pipe, a device, a directory), or is larger (EFBIG).
    """
    _require_plain(os.stat(path), path)  # a pipe that is opened, if only to look at it, wakes its writer
    with open(path, "rb", opener=_without_waiting) as file:
        status = os.fstat(file.fileno())
        _require_plain(status, path)
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"{status.st_size} bytes, expected up to {most}", str(path))
        content = file.read(status.st_size + 1)
        if len(content) > status.st_size:  # it grows, or its file system does not know sizes, as /proc
            content += file.read(most + 1 - len(content))
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))
    return content


def write_whole(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file so that readers see the old content or the new one, never a part, whatever crashes.

    A link is replaced, not followed. A file that is replaced gives its mode to the new one.

    Args:
        path: the file.
        data: what is in it afterwards.
        mode: of a new file, less the user's umask; one that is replaced gives no rights beyond it.

    Raises:
        OptionsError: something is there that is no file.
        OSError: it cannot be written.
    """
    require_replaceable(path)
    name = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    # The system applies the umask as it makes the file: to ask for it is to change it, for all threads.
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), path.stat().st_mode & mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # before the name points to it
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def require_replaceable(path: Path) -> None:
    """Refuse to put a file where a pipe, a device, a socket or a directory is.

    Raises:
        OptionsError: one is there.
    """
    if path.exists() and not path.is_file():
        raise OptionsError("the result would replace something that is no file", where=str(path))


def _without_waiting(name: str, flags: int) -> int:
    """Opens what may have become a pipe or a terminal since it was looked at."""
    return os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _require_plain(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "no plain file", str(path))
