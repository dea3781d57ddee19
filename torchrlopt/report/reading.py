"""Reads dataclasses back from the JSON of `dataclasses.asdict`."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def instance_of(kind: type[T], given: Mapping[str, Any]) -> T:
    """Return the dataclass of these values; a missing one takes its default.

    Raises:
        TypeError, ValueError: they are not of such a dataclass.
    """
    _check(dict, given)
    hints = typing.get_type_hints(kind)
    unknown = given.keys() - hints.keys()
    if unknown:
        raise ValueError(f"{kind.__name__} has no field {min(unknown)!r}")
    return kind(**{name: _value_of(hints[name], value) for name, value in given.items()})


def _check(kind: type, value: Any) -> None:
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, got {value!r}")


def _value_of(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return instance_of(hint, value)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):  # of one type and None
        return None if value is None else _value_of(inner[0], value)
    if origin in (tuple, list):
        _check(list, value)
        if origin is tuple and inner[-1] is not ...:
            return tuple(_value_of(each, one) for each, one in zip(inner, value, strict=True))
        return origin(_value_of(inner[0], one) for one in value)
    if origin in (dict, Mapping):
        _check(dict, value)
        return {name: _value_of(inner[1], one) for name, one in value.items()}
    if origin is typing.Literal and value not in inner:
        raise ValueError(f"expected one of {inner}, got {value!r}")
    if hint is float and type(value) is int and abs(value) < 2**1023:
        return float(value)
    if hint in (str, int, bool, float):
        _check(hint, value)
    return value
