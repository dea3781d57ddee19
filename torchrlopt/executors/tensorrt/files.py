"""Stores TensorRT plans and kernel timings on disk, in this package's private directory.

A plan is executable, so it is read only from a directory that nobody else can write to, and only if its
checksum, which covers its key, is correct. A damaged or unreadable file costs one more build.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from pathlib import Path

from torchrlopt.errors import OptionsError
from torchrlopt.storage.directory import check_own, check_private, make_private
from torchrlopt.storage.files import read_bounded, write_whole

logger = logging.getLogger("torchrlopt")

MAX_BYTES = 4 * 2**30  # of all plans; the least recently used are evicted first
_DIGEST_BYTES = 32


class EngineFiles:
    """Plans by key, and timings by TensorRT version.

    Args:
        directory: where the files are; created with mode 0700.
        max_bytes: limit on the total size of all plans.
    """

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES) -> None:
        self.directory = directory
        self.max_bytes = max_bytes

    def read(self, key: str) -> bytes | None:
        """The undamaged plan for this key, marked as used; None if there is none."""
        path = self.directory / f"{key}.plan"
        data = self._read(path, key)
        if data is not None:
            with contextlib.suppress(OSError):
                os.utime(path)
        return data

    def write(self, key: str, plan: bytes) -> None:
        """Store a plan; never raises if the disk cannot be written."""
        self._write(self.directory / f"{key}.plan", key, plan)
        self._evict()

    def timings(self, version: str) -> bytes:
        """Kernel timings for a build to reuse; empty if there are none."""
        return self._read(self.directory / f"timings-{version}", version) or b""

    def keep_timings(self, version: str, data: bytes) -> None:
        """Store the timings of a build; those of a concurrent build in another process may be lost."""
        self._write(self.directory / f"timings-{version}", version, data)

    def _read(self, path: Path, key: str) -> bytes | None:
        try:
            check_private(self.directory)
            check_own(path)
            data = read_bounded(path, MAX_BYTES)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                logger.warning("a file of TensorRT's cannot be read: %s", error)
            return None
        digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if digest != _digest(key, content):
            logger.warning("%s is damaged and is made anew", path)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return content

    def _write(self, path: Path, key: str, content: bytes) -> None:
        try:
            make_private(self.directory)
            check_private(self.directory)
            write_whole(path, _digest(key, content) + content, 0o600)
        except (OSError, OptionsError) as error:
            logger.warning("a file of TensorRT's cannot be written: %s", error)

    def _evict(self) -> None:
        """Delete the least recently used plans beyond `max_bytes`."""
        with contextlib.suppress(OSError):  # another process may be doing the same
            found = sorted((path.stat().st_mtime, path) for path in self.directory.glob("*.plan"))
            total = sum(path.stat().st_size for _, path in found)
            for _, path in found:
                if total <= self.max_bytes:
                    return
                total -= path.stat().st_size
                path.unlink()


def _digest(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + content).digest()
