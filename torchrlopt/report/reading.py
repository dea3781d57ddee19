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
        KeyError, TypeError, ValueError: they are not of such a dataclass.
    """
    hints = typing.get_type_hints(kind)
    return kind(**{name: _value_of(hints[name], value) for name, value in given.items()})


def _value_of(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return instance_of(hint, value)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):  # of one type and None
        return None if value is None else _value_of(inner[0], value)
    if origin is tuple and inner[-1] is not ...:
        return tuple(_value_of(each, one) for each, one in zip(inner, value, strict=True))
    if origin in (tuple, list):
        return origin(_value_of(inner[0], one) for one in value)
    if hint in (str, int, bool) and type(value) is not hint:
        raise TypeError(f"expected {hint.__name__}, got {value!r}")
    return float(value) if hint is float else value
