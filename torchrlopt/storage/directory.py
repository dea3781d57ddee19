"""Where this package keeps files: a private directory of the user."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import platformdirs

VARIABLE = "TORCHRLOPT_CACHE_DIR"


def default_directory() -> Path:
    """`$TORCHRLOPT_CACHE_DIR` where set, else the user's cache directory."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else Path(platformdirs.user_cache_dir("torchrlopt", appauthor=False))


def make_private(directory: Path) -> None:
    """Make the directory, for this user only, where there is none; close one to others that they can read.

    What the user named stays as it is: it may hold other things, and the files in it are closed one by one.
    One into which others could write stays as well: what lies in it is not to be trusted from now on either.

    Raises:
        OSError: it cannot be made.
    """
    if directory.exists():
        if not _is_named(directory) and not _can_others_write(directory.stat()):
            close_to_others(directory)
        return
    try:
        directory.mkdir(parents=True, mode=0o700)
    except FileExistsError:  # another process was first; what it made is looked at before use
        return
    directory.chmod(0o700)  # whatever the umask


def check_private(directory: Path) -> None:
    """Refuse a directory into which another user can write.

    Raises:
        OSError: it is another user's, open to writers, or not there.
    """
    info = directory.stat()
    if info.st_uid != os.getuid() or _can_others_write(info):
        raise PermissionError(f"{directory} can be written by other users; chmod 0700 it")


def close_to_others(path: Path) -> None:
    """Take from other users all rights on a file or directory of this user's.

    Raises:
        OSError: it is not there, or on a disk that is not to be written.
    """
    info = path.stat()
    if info.st_uid == os.getuid() and info.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        path.chmod(info.st_mode & stat.S_IRWXU)


def check_own(path: Path) -> None:
    """Refuse a file that another user owns, or can write.

    Raises:
        PermissionError: it is one.
        OSError: it is not there.
    """
    info = path.stat()
    if info.st_uid != os.getuid() or _can_others_write(info):
        raise PermissionError(f"{path} belongs to another user, or can be written by one")


def _is_named(directory: Path) -> bool:
    """Whether the user's variable names this directory, however it is spelled there."""
    given = os.environ.get(VARIABLE)
    try:
        return bool(given) and os.path.samefile(str(given), directory)
    except OSError:  # it names nothing that is there
        return False


def _can_others_write(info: os.stat_result) -> bool:
    return bool(info.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
