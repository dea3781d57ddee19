"""Bounds and checks for untrusted models: sizes, tensor content, and the location of external data.

The checks only look at protobuf messages and file names; they open no file but the model itself.
"""

from __future__ import annotations

import errno
import functools
import itertools
import re
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
import onnx_ir
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from torchrlopt.errors import ModelFormatError, UnsafePathError
from torchrlopt.onnx import wire
from torchrlopt.plain_text import escaped
from torchrlopt.storage.files import read_bounded

MAX_FILE_BYTES = 2 << 30
"""Size limit of a model file; larger models keep their weights as external data."""

MAX_NODES = 1_000_000
"""Maximum number of nodes, including those of subgraphs and functions."""

MAX_DEPTH = 32
"""Maximum nesting of subgraphs."""

_MAX_ELEMENTS = 1 << 56  # per tensor, so that byte counts and offsets fit in 64 bits

# Fields that hold elements not stored as raw bytes, and entries per element if more than one.
_COUNTED_FIELDS = ("float_data", "double_data", "int64_data", "uint64_data", "string_data", "int32_data")
_PARTS: dict[int, int] = {onnx.TensorProto.COMPLEX64: 2, onnx.TensorProto.COMPLEX128: 2}
_WHOLE_BYTE_BITS = 8

_ODD = ("Cc", "Cs", "Zl", "Zp")  # Unicode categories: control characters, surrogates, line separators


def parse(path: Path) -> onnx.ModelProto:
    """Parse a model file without checking its content.

    Raises:
        ModelFormatError: it is not a regular file, too large, or not a model, or its name is not UTF-8.
        FileNotFoundError: there is no such file.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:  # onnx only accepts UTF-8 names, and would blame the model
        raise ModelFormatError(
            "the name of the file is no UTF-8", where=ascii(str(path)), todo="rename the file"
        ) from escaped(error)
    try:
        data = read_bounded(path, MAX_FILE_BYTES)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise ModelFormatError("the model is no plain file", where=str(path)) from error
        if error.errno == errno.EFBIG:
            raise ModelFormatError("the file is too large", where=str(path), got=error.strerror) from escaped(
                error
            )
        raise
    proto = onnx.ModelProto()
    wire.check_size(data)
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelFormatError("the file is no ONNX model", where=str(path), got=str(error)) from escaped(
            error
        )
    return proto


def check(proto: onnx.ModelProto, path: Path | None) -> None:
    """Refuse a model that is too large, or that has a tensor whose data does not match its type.

    A model in memory, which comes from no `path`, may have no external data.

    Raises:
        ModelFormatError: it is too large, or a tensor's data does not match its type.
        UnsafePathError: external data is not in a regular file in the model's own directory.
    """
    num_nodes = 0
    for message, depth in _messages(proto):
        if isinstance(message, onnx.GraphProto | onnx.FunctionProto):
            num_nodes += len(message.node)  # before any node is made into an object
        if num_nodes > MAX_NODES or depth > MAX_DEPTH:
            raise ModelFormatError(
                "the model is too large",
                expected=f"up to {MAX_NODES} nodes, nested up to {MAX_DEPTH} deep",
                got=f"{num_nodes} nodes, depth {depth}",
            )
        _check_names(message)
        if isinstance(message, onnx.TensorProto):
            _check_tensor(message, path)


def tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """All tensors of a model, at any depth."""
    for message, _ in _messages(proto):
        if isinstance(message, onnx.TensorProto):
            yield message


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether the tensor's bytes are in another file."""
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def num_bytes(tensor: onnx.TensorProto) -> int:
    """Size of a tensor's content according to its type and shape.

    Raises:
        ModelFormatError: these make no sense.
    """
    size = _num_elements(tensor)
    try:
        bits = onnx_ir.DataType(tensor.data_type).bitwidth
    except (ValueError, TypeError) as error:
        raise ModelFormatError(
            "a tensor has no element type of a known size", where=_where(tensor), got=tensor.data_type
        ) from escaped(error)
    return (size * bits + _WHOLE_BYTE_BITS - 1) // _WHOLE_BYTE_BITS


def location(tensor: onnx.TensorProto) -> tuple[str, int]:
    """The file of external data, relative to the model's directory, and the offset in it.

    Raises:
        UnsafePathError: offset or length are not numbers, or a key is given twice.
    """
    if any(isinstance(text, bytes) for entry in tensor.external_data for text in (entry.key, entry.value)):
        raise UnsafePathError("external data is described by what is no text", where=_where(tensor))
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if len(entries) != len(tensor.external_data):
        raise UnsafePathError("external data is described twice", where=_where(tensor))
    for key in ("offset", "length"):
        if not re.fullmatch(r"-?[0-9]{1,20}", entries.setdefault(key, "0")):
            raise UnsafePathError(
                "external data has no proper extent", where=_where(tensor), got=entries[key]
            )
    return entries.get("location", ""), int(entries["offset"])


# ---- traversal


def _messages(proto: Message) -> Iterator[tuple[Message, int]]:
    """The message and all nested ones that are or may contain tensors, each with its subgraph depth."""
    # Stack fields rather than messages: there are millions of messages, and each would be an object.
    waiting: list[Iterator[tuple[Message, int]]] = [iter([(proto, 0)])]
    while waiting:
        found = next(waiting[-1], None)
        if found is None:
            waiting.pop()
            continue
        message, depth = found
        yield message, depth
        is_nested = isinstance(message, onnx.AttributeProto)
        for field, value in message.ListFields():
            kind = field.message_type
            if kind is None or kind.full_name not in _holders():
                continue
            deeper = depth + (is_nested and kind.full_name == onnx.GraphProto.DESCRIPTOR.full_name)
            inner = (value,) if isinstance(value, Message) else value
            waiting.append(zip(inner, itertools.repeat(deeper)))


@functools.cache
def _holders() -> frozenset[str]:
    """Names of the message types that are or may contain tensors or nodes, from the protobuf descriptors."""
    inner = {
        name: {field.message_type.full_name for field in kind.fields if field.message_type is not None}
        for name, kind in wire.message_types().items()
    }
    found = {onnx.TensorProto.DESCRIPTOR.full_name, onnx.NodeProto.DESCRIPTOR.full_name}
    size = 0
    while size != len(found):
        size = len(found)
        found |= {name for name, types in inner.items() if types & found}
    return frozenset(found)


def _check_names(message: Message) -> None:
    """Check that strings are UTF-8; the parser returns others as bytes, which later code does not expect."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            _check_text(message, [value] if isinstance(value, str | bytes) else value)
    if isinstance(message, onnx.GraphProto):
        for infos in (message.input, message.output, message.value_info):
            _check_text(message, [info.name for info in infos])


def _check_text(message: Message, texts: Iterable[str | bytes]) -> None:
    for text in texts:
        if isinstance(text, bytes):
            raise ModelFormatError("a name is no text", where=type(message).__name__, got=text[:40])


# ---- tensors


def _where(tensor: onnx.TensorProto) -> str:
    return f"tensor {tensor.name!r}"


def _num_elements(tensor: onnx.TensorProto) -> int:
    size = 1
    for dim in tensor.dims:
        size *= dim
        if dim < 0 or size > _MAX_ELEMENTS:
            raise ModelFormatError(
                "a tensor has no proper shape", where=_where(tensor), got=list(tensor.dims)[:16]
            )
    return size


def _check_tensor(tensor: onnx.TensorProto, path: Path | None) -> None:
    if is_external(tensor):
        if path is None:
            raise UnsafePathError("a model in memory refers to external data", where=_where(tensor))
        _check_location(tensor, path.parent)
    elif tensor.HasField("raw_data"):
        _check_count(tensor, "bytes", num_bytes(tensor), len(tensor.raw_data))
    else:
        _check_elements(tensor)


def _check_elements(tensor: onnx.TensorProto) -> None:
    """Check fields with one entry per element (two if complex); packed types have fewer entries."""
    size = _num_elements(tensor) * _PARTS.get(tensor.data_type, 1)
    is_packed = tensor.data_type != onnx.TensorProto.STRING and num_bytes(tensor) < _num_elements(tensor)
    for field in _COUNTED_FIELDS:
        count = len(getattr(tensor, field))
        if count and not is_packed:
            _check_count(tensor, f"entries of {field}", size, count)


def _check_count(tensor: onnx.TensorProto, what: str, expected: int, got: int) -> None:
    if expected != got:
        raise ModelFormatError(
            "a tensor has not the data that its shape says",
            where=_where(tensor),
            expected=f"{expected} {what}",
            got=got,
        )


def _check_location(tensor: onnx.TensorProto, directory: Path) -> None:
    """Check that external data is in a regular file in the model's directory, without opening it."""
    where = _where(tensor)
    name, offset = location(tensor)
    plain = unicodedata.normalize("NFKC", name)  # as some file systems and runtimes would interpret it
    for text in (name, plain):
        parts = Path(text).parts
        odd = "\\" in text or any(unicodedata.category(letter) in _ODD for letter in text)
        if (
            not parts
            or odd
            or ".." in parts
            or Path(text).is_absolute()
            or len(parts) != len(Path(name).parts)
        ):
            raise UnsafePathError("external data is not inside the model's directory", where=where, got=name)
    found = directory
    for part in Path(name).parts:
        found = found / part
        try:
            status = found.lstat()
        except (OSError, ValueError) as error:
            raise UnsafePathError("external data is not there", where=where, got=name) from escaped(error)
        if stat.S_ISLNK(status.st_mode):
            raise UnsafePathError("external data is behind a symbolic link", where=where, got=name)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise UnsafePathError("external data is no plain file of its own", where=where, got=name)
    _check_extent(tensor, offset, status.st_size)


def _check_extent(tensor: onnx.TensorProto, offset: int, size: int) -> None:
    """Check that the extent is inside the file and matches the tensor's size."""
    needed = num_bytes(tensor)
    given = {entry.key: entry.value for entry in tensor.external_data}.get("length")
    length = needed if given is None else int(given)
    if offset < 0 or length < 0 or offset + max(length, needed) > size:
        raise UnsafePathError(
            "external data reaches beyond its file",
            where=_where(tensor),
            expected=f"0 to {size}",
            got=f"{offset} to {offset + max(length, needed)}",
        )
    _check_count(tensor, "bytes", needed, length)
