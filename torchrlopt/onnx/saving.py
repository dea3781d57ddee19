"""Writes a model and its external data as one: both are there, complete and of one writing, or none is.

They are written in a folder of their own beside the target and then moved: the data first, under a name that
nothing has, so that a model which is there, old or new, always finds the data it was written with.

`onnx_ir.external_data` is not used for it: it opens the data that a model refers to by name alone, and so
follows a link that was put there since the check, and it writes what several tensors share more than once.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

import onnx
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

from torchrlopt.errors import ModelFormatError, OptionsError, RlOptError, UnsafePathError
from torchrlopt.onnx import safety
from torchrlopt.onnx.staging import StagingFolder
from torchrlopt.plain_text import escaped

MAX_INLINE_BYTES = 1 << 30
"""Size of the tensors up to which they are written into the model file, if they were not outside before."""

PRODUCER = "torchrlopt"
"""What models that were written here say of their origin."""

_MIN_MOVED_BYTES = 256  # smaller tensors stay in the model: sizes, axes, scales
_CHUNK = 16 << 20
_ALIGNMENT = 64  # of a tensor in the data file
_LARGE, _PAGE = 1 << 20, 4096  # large ones begin a page, so that they can be mapped


class Staged:
    """A model on its way to a path; a context, at whose end nothing is left but what was committed.

    What a killed process leaves is removed by the next one that writes into the folder.

    Args:
        path: where the model goes. A link is replaced, not followed.
        keep: data files that must stay although the model that is replaced was written with them.

    Raises:
        OptionsError: something is there that is no file.
        OSError: the folder cannot be written to.
    """

    def __init__(self, path: Path, keep: Collection[Path] = ()) -> None:
        if path.exists() and not path.is_file():
            raise OptionsError("the result would replace something that is no file", where=str(path))
        self.path = path
        self.keep = {each.resolve() for each in keep}
        self.folder = StagingFolder(path.parent)
        self.data_name = ""  # of the data file, once there is one
        self.is_committed = False

    def __enter__(self) -> Staged:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.data_name and not self.is_committed:
            (self.path.parent / self.data_name).unlink(missing_ok=True)  # only the name was taken
        self.folder.close()

    @property
    def model_path(self) -> Path:
        """Where the model is before it is committed; it can be read there, with its data."""
        return self.folder.path / self.path.name

    def write(self, proto: onnx.ModelProto, base: Path) -> None:
        """Write a model with its data; what was written before is dropped.

        Args:
            proto: the model; its external data is described anew.
            base: the directory of the external data that it has.

        Raises:
            ModelFormatError: it is too large for the format.
            UnsafePathError: its external data is no plain file any more.
            OSError: it cannot be written, or its data cannot be read.
        """
        moved = _outside(proto)
        if moved:
            self.data_name = self.data_name or self._free_name()
            with open(self.model_path.with_name(self.data_name), "wb") as file:
                _move(moved, base, file, self.data_name)
                _flush(file)
        elif self.data_name:
            (self.path.parent / self.data_name).unlink()
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
        """Put the model in its place.

        Raises:
            OSError: it cannot be put there; what was there before still is.
        """
        old = self._old_data()
        if self.data_name:
            os.replace(self.model_path.with_name(self.data_name), self.path.parent / self.data_name)
        os.replace(self.model_path, self.path)
        self.is_committed = True
        for path in old:
            with contextlib.suppress(OSError):
                path.unlink()

    def _free_name(self) -> str:
        """A name for the data that no file has; an empty file holds it until the data comes."""
        number = 0
        while True:
            name = f"{self.path.name}.{number}.data" if number else f"{self.path.name}.data"
            try:
                self.folder.take(name)
            except FileExistsError:
                number += 1
            else:
                return name

    def _old_data(self) -> list[Path]:
        """Data that only the model which is replaced can need: written here, under a name made of its own."""
        own = re.compile(re.escape(self.path.name) + r"(\.\d+)?\.data")
        names = {name for name in os.listdir(self.path.parent) if own.fullmatch(name)} - {self.data_name}
        if not names or not self.path.exists():
            return []
        status = self.path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            return []  # under its other name the model stays
        try:
            proto = safety.parse(self.path)
            used = {
                safety.location(tensor)[0] for tensor in safety.tensors(proto) if safety.is_external(tensor)
            }
        except (RlOptError, OSError):
            return []  # whatever it is, it is not ours
        paths = [self.path.parent / name for name in sorted(names & used)]
        return [p for p in paths if p.resolve() not in self.keep] if proto.producer_name == PRODUCER else []


def _outside(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    """The tensors that go to the data file: those that are outside now, all large ones of a large model."""
    every = list(safety.tensors(proto))
    is_large = sum(tensor.ByteSize() for tensor in every) > MAX_INLINE_BYTES
    return [
        tensor
        for tensor in every
        if safety.is_external(tensor)
        or (is_large and tensor.HasField("raw_data") and tensor.ByteSize() > _MIN_MOVED_BYTES)
    ]


def _move(tensors: list[onnx.TensorProto], base: Path, file: IO[bytes], name: str) -> None:
    """Append the bytes of tensors to a file and describe them so; what several share is written once."""
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
    """Fill the file up to where a tensor may begin; the offset."""
    unit = _PAGE if length >= _LARGE else _ALIGNMENT
    file.write(bytes(-file.tell() % unit))
    return file.tell()


def _read(path: Path, offset: int, length: int) -> Iterator[bytes]:
    """A part of a file that was checked when the model was loaded, and is looked at again."""
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
    """On the disk before the name is: a model whose name survives a crash is complete."""
    file.flush()
    os.fsync(file.fileno())
