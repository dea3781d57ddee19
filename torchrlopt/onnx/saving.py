"""Writes a model and its external data atomically: both are there and belong together, or neither is.

They are written to a staging folder next to the target and then moved. The data goes first, under an unused
name, so that the model in place, old or new, always finds the data it was written with.

This does not use `onnx_ir.external_data`, which opens the data a model refers to by name alone and so follows
links created since the check, and which writes data shared by several tensors more than once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

import onnx
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

from torchrlopt.errors import ModelFormatError, OptionsError, RlOptError, UnsafePathError
from torchrlopt.onnx import safety
from torchrlopt.plain_text import escaped

MAX_INLINE_BYTES = 1 << 30
"""Total tensor size up to which tensors go into the model file, unless they were external before."""

PRODUCER = "torchrlopt"
"""Producer name in models written here."""

_MIN_MOVED_BYTES = 256  # smaller tensors stay in the model: sizes, axes, scales
_CHUNK = 16 << 20
_ALIGNMENT = 64  # of each tensor in the data file
_LARGE, _PAGE = 1 << 20, 4096  # large tensors start on a page, so that they can be mapped


class Staged:
    """A model on its way to a path; a context manager that leaves nothing behind but committed files.

    Leftovers of a killed process are removed by the next one that writes to the folder.

    Args:
        path: where the model goes. A link is replaced, not followed.
        keep: data files that must stay even if the replaced model was written with them.

    Raises:
        OptionsError: the path exists and is not a file.
        OSError: the folder is not writable.
    """

    def __init__(self, path: Path, keep: Collection[Path] = ()) -> None:
        if path.exists() and not path.is_file():
            raise OptionsError("the result would replace something that is no file", where=str(path))
        self.path = path
        self.keep = {each.resolve() for each in keep}
        _clear_abandoned(path.parent)
        self.folder, self._lock = _made(path.parent)
        self.data_name = ""  # of the data file, once it exists

    def __enter__(self) -> Staged:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    @property
    def model_path(self) -> Path:
        """The model's path before it is committed; it can be read there, with its data."""
        return self.folder / self.path.name

    def write(self, proto: onnx.ModelProto, base: Path) -> None:
        """Write a model with its data; replaces earlier writes.

        The entries of external data, which is in the directory `base`, are rewritten.

        Raises:
            ModelFormatError: it is too large for the format.
            UnsafePathError: its external data is no longer a regular file.
            OSError: it cannot be written, or its data cannot be read.
        """
        moved = _outside(proto)
        if moved:
            self.data_name = self.data_name or self._free_name()
            with open(self.model_path.with_name(self.data_name), "wb") as file:
                _move(moved, base, file, self.data_name)
                _flush(file)
        elif self.data_name:
            self.model_path.with_name(self.data_name).unlink()
            self.data_name = ""
        try:
            content = proto.SerializeToString()
        except (EncodeError, ValueError) as error:
            raise ModelFormatError("the model is too large for its format", got=str(error)) from escaped(
                error
            )
        with open(self.model_path, "wb") as file:
            file.write(content)
            _flush(file)

    def commit(self) -> None:
        """Move the model into place.

        Raises:
            OSError: it cannot be moved there; whatever was there before is unchanged.
        """
        old = self._old_data()
        while self.data_name:
            try:
                self._publish_data()
                break
            except FileExistsError:  # somebody else has saved to the same path meanwhile
                self._rename_data(self._free_name())
        try:
            os.replace(self.model_path, self.path)
        except OSError:
            if self.data_name:
                (self.path.parent / self.data_name).unlink()
            raise
        for path in old:
            with contextlib.suppress(OSError):
                path.unlink()

    def _publish_data(self) -> None:
        """Move the data out of the staging folder; FileExistsError if there is a file of its name."""
        staged, target = self.model_path.with_name(self.data_name), self.path.parent / self.data_name
        try:
            os.link(staged, target)
        except FileExistsError:
            raise
        except OSError:  # no hard links on this file system: an empty file reserves the name
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
            os.replace(staged, target)
        else:
            staged.unlink()

    def _rename_data(self, name: str) -> None:
        """Give the data another name, in the staging folder and in the model that refers to it."""
        proto = safety.parse(self.model_path)
        for tensor in filter(safety.is_external, safety.tensors(proto)):
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = name
        with open(self.model_path, "wb") as file:
            file.write(proto.SerializeToString())
            _flush(file)
        os.rename(self.model_path.with_name(self.data_name), self.model_path.with_name(name))
        self.data_name = name

    def _free_name(self) -> str:
        """An unused name for the data."""
        number = 0
        while True:
            name = f"{self.path.name}.{number}.data" if number else f"{self.path.name}.data"
            if not os.path.lexists(self.path.parent / name):
                return name
            number += 1

    def _old_data(self) -> list[Path]:
        """Data that only the replaced model can need: written here, under a name derived from its own."""
        own = re.compile(re.escape(self.path.name) + r"(\.\d+)?\.data")
        names = {name for name in os.listdir(self.path.parent) if own.fullmatch(name)} - {self.data_name}
        if not names or not self.path.exists():
            return []
        status = self.path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            return []  # the old model stays reachable by its other name
        try:
            proto = safety.parse(self.path)
            used = {
                safety.location(tensor)[0] for tensor in safety.tensors(proto) if safety.is_external(tensor)
            }
        except (RlOptError, OSError):
            return []  # not written by us
        paths = [self.path.parent / name for name in sorted(names & used)]
        return [p for p in paths if p.resolve() not in self.keep] if proto.producer_name == PRODUCER else []


def _outside(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    """The tensors for the data file: those that are external now, and all large ones of a large model."""
    every = list(safety.tensors(proto))
    is_large = sum(tensor.ByteSize() for tensor in every) > MAX_INLINE_BYTES
    return [
        tensor
        for tensor in every
        if safety.is_external(tensor)
        or (is_large and tensor.HasField("raw_data") and tensor.ByteSize() > _MIN_MOVED_BYTES)
    ]


def _move(tensors: list[onnx.TensorProto], base: Path, file: IO[bytes], name: str) -> None:
    """Append tensors to a file and point them to it; shared data is written once."""
    written: dict[tuple[str, int, int], int] = {}
    for tensor in tensors:
        length = safety.num_bytes(tensor)
        if safety.is_external(tensor):
            key = (*safety.location(tensor), length)
            if key not in written:
                written[key] = _aligned(file, length)
                for chunk in _read(base / key[0], key[1], length):
                    file.write(chunk)
            offset = written[key]
        else:
            offset = _aligned(file, length)
            file.write(tensor.raw_data)
            tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        del tensor.external_data[:]
        for entry, value in (("location", name), ("offset", str(offset)), ("length", str(length))):
            tensor.external_data.add(key=entry, value=value)


def _aligned(file: IO[bytes], length: int) -> int:
    """Pad the file to the alignment of a tensor and return the offset."""
    unit = _PAGE if length >= _LARGE else _ALIGNMENT
    file.write(bytes(-file.tell() % unit))
    return file.tell()


def _read(path: Path, offset: int, length: int) -> Iterator[bytes]:
    """Read part of a file that was checked when the model was loaded, checking it again."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or offset + length > status.st_size:
            raise UnsafePathError("external data was replaced while it was read", where=str(path))
        file.seek(offset)
        while length > 0:
            chunk = file.read(min(length, _CHUNK))
            if not chunk:
                raise UnsafePathError("external data ended while it was read", where=str(path))
            length -= len(chunk)
            yield chunk


def _flush(file: IO[bytes]) -> None:
    """Flush to disk before the rename: a model whose name survives a crash is complete."""
    file.flush()
    os.fsync(file.fileno())


_PREFIX = ".torchrlopt."
_OURS = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}")  # the pattern of tempfile's names


def _made(parent: Path) -> tuple[Path, int]:
    """Create a folder, so that moves stay on one file system, and return it with the handle that locks it.

    The lock lasts until the process ends, however that happens: an unlocked folder is abandoned.
    """
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
