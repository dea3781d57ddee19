"""How much a model file is once it is parsed, found out before the parser makes it.

An empty message or text takes two bytes in a file and a hundred or more in memory, a number of one byte up to
eight: a small file could fill it. Here they are counted in the bytes alone, by the tables that the parser
itself goes by.
"""

from __future__ import annotations

import functools
import heapq
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor_pb2 import (  # type: ignore[import-untyped]
    DescriptorProto,
    FieldDescriptorProto,
)

from torchrlopt.errors import ModelFormatError

MAX_MESSAGES = 5_000_000
"""Most messages of a file: nodes, attributes, tensors, types and dimensions are messages.

A text that is one of many counts as half of one, and other parts by what they take.
"""

# What things take in memory beyond their bytes in the file, in hundredths of a message. Measured from reading
# to the end of the checks: an empty message takes about 230 bytes, an empty text 95.
_MESSAGE, _TEXT = 100, 50
_NUMBER = 10  # one that stands alone: the time to read it counts as well
_BYTES_OF_A_UNIT = 2.3

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_LAST_OF_ONE_BYTE = 0x7F  # of the integers in the format
_EMPTY = 2  # bytes that a message takes at least, in the message that it is part of
_MAX_REPEATED = 1000  # times that what can be there once may be given; the last one counts


def check_size(data: bytes, kind: Any = onnx.ModelProto) -> None:
    """Refuse a file that holds too much, or that is cut off.

    Only as many parts are looked into as it takes: what is not looked into counts as full of empty messages.

    Args:
        data: the content of the file.
        kind: the type of the message in it.

    Raises:
        ModelFormatError: it is not what the parser reads, or too large.
    """
    parts: list[tuple[int, int, int, str]] = []  # minus the size, start, end, type
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


class _Field:
    """What is to be known of a field.

    Attributes:
        inner: the type of a message; None of others.
        is_repeated: whether there may be many.
        units: what an entry takes that stands alone.
        packed_bytes: of a number in memory, where many of any length stand together; 0 of others.
    """

    def __init__(self, field: Any, label: int) -> None:
        is_text = field.type in (field.TYPE_STRING, field.TYPE_BYTES)
        self.inner = field.message_type
        self.is_repeated = label == FieldDescriptorProto.LABEL_REPEATED
        self.units = _TEXT if is_text else _NUMBER if self.inner is None else _MESSAGE
        self.packed_bytes = 0
        if self.is_repeated and field.cpp_type in (
            field.CPPTYPE_INT32,
            field.CPPTYPE_UINT32,
            field.CPPTYPE_ENUM,
        ):
            self.packed_bytes = 4
        elif self.is_repeated and field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
            self.packed_bytes = 8


@functools.cache
def _fields(name: str) -> dict[int, _Field]:
    """The fields of a message type, by number."""
    kind, described = message_types()[name], DescriptorProto()
    kind.CopyToProto(described)  # labels under one name in every version of protobuf
    labels = {field.number: field.label for field in described.field}
    return {field.number: _Field(field, labels[field.number]) for field in kind.fields}


@functools.cache
def message_types() -> dict[str, Any]:
    """All message types of a model, by name, as the format's own tables describe them."""
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
    """What the message in `data[start:end]` takes without its inner ones, and those that are not empty.

    Args:
        data: the file.
        start: of the message.
        end: of the message.
        fields: of its type, by number.
        most: units after which the count ends.
    """
    count, repeated, found, place = 0, 0, [], start
    while place < end and count <= most:
        tag, place = data[place], place + 1
        if tag > _LAST_OF_ONE_BYTE:
            tag, place = _varint(data, place - 1, end)
        wire, field = tag & 7, fields.get(tag >> 3)
        if field is None:  # of a newer version of the format: the parser keeps it
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
        else:  # cut off, or groups, which ONNX does not have
            raise _broken(place)
    if place > end:
        raise _broken(place)
    return count, found


def _packed(data: bytes, place: int, end: int, width: int) -> int:
    """What numbers of `width` bytes take beyond their bytes in the file, of which each has one or more."""
    last = np.frombuffer(data, np.uint8, max(end - place, 0), place) <= _LAST_OF_ONE_BYTE
    beyond = int(np.count_nonzero(last)) * width - last.size
    return int(max(beyond, 0) / _BYTES_OF_A_UNIT)


def _varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    """An integer of seven bits a byte, and the place behind it."""
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
