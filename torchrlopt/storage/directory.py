"""The private directory in which this package keeps its files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import platformdirs

VARIABLE = "TORCHRLOPT_CACHE_DIR"


def default_directory() -> Path:
    """Return `$TORCHRLOPT_CACHE_DIR` if set, else the user's cache directory."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else Path(platformdirs.user_cache_dir("torchrlopt", appauthor=False))


def make_private(directory: Path) -> None:
    """Create the directory for this user only; if it exists and others can read it, make it private.

    A directory named by the user keeps its mode: it may hold other things, and its files are made private one
    by one. A directory that others can write keeps its mode too: its contents must not become trusted.

    Raises:
        OSError: it cannot be created.
    """
    if directory.exists():
        if not _is_named(directory) and not _can_others_write(directory.stat()):
            close_to_others(directory)
        return
    try:
        directory.mkdir(parents=True, mode=0o700)
    except FileExistsError:  # another process was faster; its directory is checked before use
        return
    directory.chmod(0o700)  # regardless of the umask


def check_private(directory: Path) -> None:
    """Reject a directory that other users can write.

    Raises:
        OSError: it belongs to another user, is writable by others, or does not exist.
    """
    info = directory.stat()
    if info.st_uid != os.getuid() or _can_others_write(info):
        raise PermissionError(f"{directory} can be written by other users; chmod 0700 it")


def close_to_others(path: Path) -> None:
    """Remove all permissions of other users on a file or directory that this user owns.

    Raises:
        OSError: it does not exist, or the disk is not writable.
    """
    info = path.stat()
    if info.st_uid == os.getuid() and info.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        path.chmod(info.st_mode & stat.S_IRWXU)


def check_own(path: Path) -> None:
    """Reject a file that another user owns or can write.

    Raises:
        PermissionError: another user owns or can write it.
        OSError: it does not exist.
    """
    info = path.stat()
    if info.st_uid != os.getuid() or _can_others_write(info):
        raise PermissionError(f"{path} belongs to another user, or can be written by one")


def _is_named(directory: Path) -> bool:
    """Whether `$TORCHRLOPT_CACHE_DIR` names this directory, under any spelling."""
    given = os.environ.get(VARIABLE)
    try:
        return bool(given) and os.path.samefile(str(given), directory)
    except OSError:  # it names nothing that exists
        return False


def _can_others_write(info: os.stat_result) -> bool:
    return bool(info.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
