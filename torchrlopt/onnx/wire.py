"""Bounds the parsed size of a model file before the parser runs.

An empty message or string takes two bytes in a file and a hundred or more in memory, a one-byte number up to
eight: a small file could exhaust the memory. This module counts them in the raw bytes, using the same
descriptors as the parser.
"""

from __future__ import annotations

import functools
import heapq
from typing import Any, NamedTuple

import numpy as np
import onnx
from google.protobuf.descriptor_pb2 import (  # type: ignore[import-untyped]
    DescriptorProto,
    FieldDescriptorProto,
)

from torchrlopt.errors import ModelFormatError

MAX_MESSAGES = 5_000_000
"""Maximum number of messages in a file: nodes, attributes, tensors, types and dimensions are messages.

A string in a repeated field counts as half a message, other parts in proportion to their memory.
"""

# Memory cost of parts beyond their bytes in the file, in hundredths of a message. Measured from reading
# to the end of the checks: an empty message takes about 230 bytes, an empty string 95.
_MESSAGE, _TEXT = 100, 50
_NUMBER = 10  # unpacked; includes the time to read it
_BYTES_OF_A_UNIT = 2.3

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_LAST_OF_ONE_BYTE = 0x7F  # largest value that fits in a one-byte varint
_EMPTY = 2  # minimum bytes of a message inside its parent
_MAX_REPEATED = 1000  # how often singular fields may occur in a message; the last occurrence counts


def check_size(data: bytes, kind: Any = onnx.ModelProto) -> None:
    """Refuse a file, a message of a `kind`, that holds too much or is truncated.

    Only parses as many parts as necessary: unparsed parts count as full of empty messages.

    Raises:
        ModelFormatError: the parser could not read it, or it is too large.
    """
    parts: list[tuple[int, int, int, str]] = []  # negative size (for the max-heap), start, end, type
    counted, possible, most = 0, 0, MAX_MESSAGES * _MESSAGE

    def add(start: int, end: int, type_: Any) -> None:
        nonlocal possible
        heapq.heappush(parts, (start - end, start, end, type_.full_name))
        possible += (end - start) // _EMPTY * _MESSAGE

    add(0, len(data), kind.DESCRIPTOR)
    while parts and counted + possible > most:
        size, start, end, name = heapq.heappop(parts)
        possible -= -size // _EMPTY * _MESSAGE
        count, inner = _count(data, start, end, _fields(name), most - counted)
        counted += count
        if counted > most:
            raise ModelFormatError(
                "the model is too large",
                expected=f"up to {MAX_MESSAGES} messages, or {MAX_MESSAGES * _MESSAGE // _TEXT} texts",
                got="more",
            )
        for part in inner:
            add(*part)


class _Field(NamedTuple):
    """What the count needs to know about a field.

    Attributes:
        inner: the message type; None for other fields.
        is_repeated: whether the field is repeated.
        units: cost of one unpacked entry.
        packed_bytes: memory of one number in a packed field of varints; 0 for others.
    """

    inner: Any
    is_repeated: bool
    units: int
    packed_bytes: int


@functools.cache
def _fields(name: str) -> dict[int, _Field]:
    """The fields of a message type, by number."""
    kind, described = message_types()[name], DescriptorProto()
    kind.CopyToProto(described)  # labels have this name in every version of protobuf
    repeated = {each.number for each in described.field if each.label == FieldDescriptorProto.LABEL_REPEATED}
    found = {}
    for field in kind.fields:
        is_text = field.type in (field.TYPE_STRING, field.TYPE_BYTES)
        units = _TEXT if is_text else _NUMBER if field.message_type is None else _MESSAGE
        widths = dict.fromkeys((field.CPPTYPE_INT32, field.CPPTYPE_UINT32, field.CPPTYPE_ENUM), 4)
        widths |= dict.fromkeys((field.CPPTYPE_INT64, field.CPPTYPE_UINT64), 8)
        is_repeated = field.number in repeated
        packed_bytes = widths.get(field.cpp_type, 0) if is_repeated else 0
        found[field.number] = _Field(field.message_type, is_repeated, units, packed_bytes)
    return found


@functools.cache
def message_types() -> dict[str, Any]:
    """All message types of a model by name, from the protobuf descriptors."""
    found: dict[str, Any] = {}
    waiting: list[Any] = [onnx.ModelProto.DESCRIPTOR]
    while waiting:
        kind = waiting.pop()
        if kind.full_name not in found:
            found[kind.full_name] = kind
            waiting += [field.message_type for field in kind.fields if field.message_type is not None]
    return found


def _count(
    data: bytes, start: int, end: int, fields: dict[int, _Field], most: int
) -> tuple[int, list[tuple[int, int, Any]]]:
    """The cost of the message in `data[start:end]` without nested ones, and the non-empty nested messages.

    The count stops at `most` units.
    """
    count, repeated, found, place = 0, 0, [], start
    while place < end and count <= most:
        tag, place = data[place], place + 1
        if tag > _LAST_OF_ONE_BYTE:
            tag, place = _varint(data, place - 1, end)
        wire, field = tag & 7, fields.get(tag >> 3)
        if field is None:  # from a newer version of the format: the parser keeps it
            count += _TEXT
        elif field.is_repeated or field.inner is not None:
            count += field.units
        else:
            repeated += 1
            if repeated > _MAX_REPEATED:
                raise _broken(place)
        if wire == _BYTES and place < end:
            length, place = data[place], place + 1
            if length > _LAST_OF_ONE_BYTE:
                length, place = _varint(data, place - 1, end)
            if field is not None and field.inner is not None and length >= _EMPTY:
                found.append((place, place + length, field.inner))
            elif field is not None and field.packed_bytes:
                count += _packed(data, place, min(place + length, end), field.packed_bytes)
            place += length
        elif wire == _VARINT:
            _, place = _varint(data, place, end)
        elif wire in (_FIXED64, _FIXED32):
            place += 8 if wire == _FIXED64 else 4
        else:  # truncated, or groups, which ONNX does not use
            raise _broken(place)
    if place > end:
        raise _broken(place)
    return count, found


def _packed(data: bytes, place: int, end: int, width: int) -> int:
    """Cost of packed varints of `width` bytes in memory, beyond their bytes in the file."""
    last = np.frombuffer(data, np.uint8, max(end - place, 0), place) <= _LAST_OF_ONE_BYTE
    beyond = int(np.count_nonzero(last)) * width - last.size
    return int(max(beyond, 0) / _BYTES_OF_A_UNIT)


def _varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    """Decode a varint (seven bits per byte); returns it and the position after it."""
    number = shift = 0
    while place < end and shift < 70:
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
        shift += 7
    raise _broken(place)


def _broken(place: int) -> ModelFormatError:
    return ModelFormatError("the file is no ONNX model", where=f"byte {place}", got="it does not parse")
