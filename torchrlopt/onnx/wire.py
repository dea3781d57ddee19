"""How much a model file is once it is parsed, found out before the parser makes it.

An empty message takes two bytes in a file and a hundred or more in memory, so a small file could fill it.
Here messages are counted in the bytes alone, by the tables that the parser itself goes by.
"""

from __future__ import annotations

import functools
import heapq
from typing import Any

import onnx

from torchrlopt.errors import ModelFormatError

MAX_MESSAGES = 5_000_000
"""Most messages of a file: nodes, attributes, tensors, types and dimensions are messages."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_LAST_OF_ONE_BYTE = 0x7F  # of the integers in the format
_EMPTY = 2  # bytes that a message takes at least, in the message that it is part of


def check_size(data: bytes, kind: Any = onnx.ModelProto) -> None:
    """Refuse a file that holds too many messages, or that is cut off.

    Only as many parts are looked into as it takes: what is not looked into counts as full of empty messages.

    Args:
        data: the content of the file.
        kind: the type of the message in it.

    Raises:
        ModelFormatError: it is not what the parser reads, or too large.
    """
    parts: list[tuple[int, int, int, str]] = []  # minus the size, start, end, type
    counted, possible = 0, 0

    def add(start: int, end: int, type_: Any) -> None:
        nonlocal possible
        heapq.heappush(parts, (start - end, start, end, type_.full_name))
        possible += (end - start) // _EMPTY

    add(0, len(data), kind.DESCRIPTOR)
    while parts and counted + possible > MAX_MESSAGES:
        size, start, end, name = heapq.heappop(parts)
        possible -= -size // _EMPTY
        count, inner = _messages(data, start, end, _inner_types(name), MAX_MESSAGES - counted)
        counted += count
        if counted > MAX_MESSAGES:
            raise ModelFormatError(
                "the model is too large", expected=f"up to {MAX_MESSAGES} messages", got="more"
            )
        for part in inner:
            add(*part)


@functools.cache
def _inner_types(name: str) -> dict[int, Any]:
    """The message types of a type's fields, by field number; fields of other types are left out."""
    fields = message_types()[name].fields
    return {field.number: field.message_type for field in fields if field.message_type is not None}


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


def _messages(
    data: bytes, start: int, end: int, inner: dict[int, Any], most: int
) -> tuple[int, list[tuple[int, int, Any]]]:
    """How many fields of the message in `data[start:end]` are messages, and those that are not empty.

    Args:
        data: the file.
        start: of the message.
        end: of the message.
        inner: types of the fields that are messages, by number.
        most: fields after which the count ends.
    """
    count, found, place = 0, [], start
    while place < end and count <= most:
        tag, place = data[place], place + 1
        if tag > _LAST_OF_ONE_BYTE:
            tag, place = _varint(data, place - 1, end)
        wire = tag & 7
        if wire == _BYTES and place < end:
            length, place = data[place], place + 1
            if length > _LAST_OF_ONE_BYTE:
                length, place = _varint(data, place - 1, end)
            kind = inner.get(tag >> 3)
            if kind is not None:
                count += 1
                if length >= _EMPTY:
                    found.append((place, place + length, kind))
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
