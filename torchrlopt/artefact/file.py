"""The file: one safetensors file, with JSON in its header. Nothing in it is pickled or run.

Each tensor is stored as the bytes that it spans in memory, from a multiple of 64 bytes on, where kernels read
it; the JSON says of which type it is and which sizes and strides it has. Reading maps the file into memory:
processes that load the same file share it, and what a call does not read is not read from the disk.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from torchrlopt.artefact.calls import DTYPES, Json, damaged, fields
from torchrlopt.errors import ModelFormatError, UnsupportedError
from torchrlopt.storage.checked_json import checksum, decoded, is_whole
from torchrlopt.storage.files import write_whole

KIND = "torchrlopt model"
FORMAT = 3
_CONTENT, _CHECKSUM, _FILLER = "torchrlopt", "sha256", "filler"
_ALIGNMENT = 64
_MOST = 1 << 48
"""Sizes and strides are smaller."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Tensors:
    """The tensors of a file that is being made; equal ones are stored once.

    Attributes:
        table: type, sizes and strides of each tensor, and which bytes it is.
        parts: the bytes, each a multiple of 64 long.
    """

    def __init__(self) -> None:
        self.table: list[dict[str, Json]] = []
        self.parts: dict[str, torch.Tensor] = {}
        self._added: list[torch.Tensor] = []
        self._numbers: dict[str, int] = {}
        self._names: dict[bytes, str] = {}

    def add(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor in the table.

        Raises:
            UnsupportedError: it has a layout or a type that is not stored.
        """
        if tensor.layout is not torch.strided or tensor.dtype not in _NAMES or tensor.device.type != "cpu":
            raise UnsupportedError(
                "a saved model cannot hold this tensor",
                expected="plain numbers on the CPU",
                got=f"{tensor.layout}, {tensor.dtype}, {tensor.device}",
            )
        tensor = tensor.detach().resolve_conj().resolve_neg()
        entry = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "part": self._part(tensor),
        }
        number = self._numbers.setdefault(json.dumps(entry), len(self.table))
        if number == len(self.table):
            self.table.append(entry)
            self._added.append(tensor)
        return number

    def tensor(self, number: int) -> torch.Tensor:
        """Return a tensor by its number."""
        return self._added[number]

    def _part(self, tensor: torch.Tensor) -> str:
        span = _span(tensor.shape, tensor.stride())
        flat = tensor.as_strided((span,), (1,))
        flat = flat.view(torch.uint8)
        padded = torch.zeros(-(-max(flat.numel(), 1) // _ALIGNMENT) * _ALIGNMENT, dtype=torch.uint8)
        padded[: flat.numel()] = flat
        digest = hashlib.sha256(padded.numpy().data).digest()
        name = self._names.setdefault(digest, str(len(self._names)))
        self.parts.setdefault(name, padded)
        return name


def write(path: Path, content: Json, tensors: Tensors) -> None:
    """Write a file atomically.

    Args:
        path: its place.
        content: anything that JSON can hold.
        tensors: that the content refers to.

    Raises:
        OptionsError: the path exists and is not a file.
        OSError: the file cannot be written.
    """
    whole = {"kind": KIND, "format": FORMAT, "tensors": tensors.table, "content": content}
    text = json.dumps(whole, separators=(",", ":"), allow_nan=False)
    header = {_CONTENT: text, _CHECKSUM: checksum(KIND, text), _FILLER: ""}
    data = save(tensors.parts, header)
    # The tensors follow the header, whose length is a multiple of 8.
    missing = -(8 + int.from_bytes(data[:8], "little")) % _ALIGNMENT
    if missing:
        data = save(tensors.parts, {**header, _FILLER: " " * missing})
    write_whole(path, data)


class Held:
    """A file that was written by `write`, mapped into memory.

    Args:
        path: its place.

    Attributes:
        content: as it was given to `write`; untrusted.

    Raises:
        ModelFormatError: there is no such file, or `write` did not write it.
    """

    def __init__(self, path: Path) -> None:
        self._where = str(path)
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise damaged("it is no plain file", path)
            self._file = safe_open(path, framework="pt").__enter__()
            header = self._file.metadata() or {}
            self._parts = set(self._file.keys())
            text = header.get(_CONTENT)
            if text is None:
                raise ModelFormatError(
                    "the file is no saved model",
                    where=self._where,
                    expected="what torchrlopt.save wrote",
                    is_bug=False,
                )
            if not is_whole(KIND, text, header.get(_CHECKSUM)):
                raise damaged("the check sum does not fit")
            whole = decoded(text)
        except (OSError, SafetensorError, ValueError) as error:
            raise ModelFormatError(
                "the file cannot be read",
                where=self._where,
                expected="what torchrlopt.save wrote",
                got=f"{type(error).__name__}: {error}",
                is_bug=False,
            ) from error
        if type(whole) is not dict or (whole.get("kind"), whole.get("format")) != (KIND, FORMAT):
            raise ModelFormatError(
                "the file is of another format",
                where=self._where,
                expected=f"{KIND}, format {FORMAT}",
                todo="save the model again with this version of torchrlopt",
                is_bug=False,
            )
        _, _, table, self.content = fields(whole, kind=str, format=int, tensors=list, content=dict)
        self._table: list[Json] = table
        self._made: dict[int, torch.Tensor] = {}

    def tensor(self, number: Any) -> torch.Tensor:
        """Return a tensor of the table; two requests return the same one.

        Raises:
            ModelFormatError: there is none, or it is malformed.
        """
        if type(number) is not int or not 0 <= number < len(self._table):
            raise damaged("there is no such tensor", number)
        if number not in self._made:
            self._made[number] = self._read(self._table[number])
        return self._made[number]

    def _read(self, entry: Json) -> torch.Tensor:
        dtype, shape, stride, part = fields(entry, dtype=str, shape=list, stride=list, part=str)
        if dtype not in DTYPES or part not in self._parts:
            raise damaged("a tensor is of no known type, or its bytes are missing", entry)
        numbers = [*shape, *stride]
        if len(shape) != len(stride) or not all(type(x) is int and 0 <= x < _MOST for x in numbers):
            raise damaged("a tensor has no sizes and strides", entry)
        span = _span(shape, stride)
        try:
            flat = self._file.get_tensor(part)
        except SafetensorError as error:
            raise damaged("a tensor cannot be read", error) from error
        itemsize = DTYPES[dtype].itemsize
        num_bytes = span * itemsize
        if flat.dtype is not torch.uint8 or flat.dim() != 1 or num_bytes > flat.numel():
            raise damaged("a tensor has other bytes than its type and sizes say", entry)
        if math.prod(shape) > _MOST or flat.storage_offset() % itemsize:
            raise damaged("a tensor is too large, or lies where it cannot be read", entry)
        elements: torch.Tensor = flat[:num_bytes].view(DTYPES[dtype])
        return elements.as_strided(shape, stride, elements.storage_offset())


def _span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """From the first element to the last, in elements."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
