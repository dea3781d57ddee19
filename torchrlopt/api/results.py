"""What a call returns, made anew of the outputs of its graph."""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

Make = Callable[[Sequence[Any]], Any]

_SAME = (type(None), bool, str, bytes, torch.dtype, torch.device)
_NUMBERS = (int, float, complex)

_Made = dict[int, Any]
"""What has been made in one call, by identity of what it stands for."""

_Part = Callable[[Sequence[Any], _Made], Any]


def maker(value: Any, outputs: Sequence[Any], given: Collection[int], are_numbers_fixed: bool) -> Make | None:
    """A function that makes such a value of such outputs.

    It makes what compiled code makes: containers, and objects without calling their class.

    Args:
        value: to be made.
        outputs: of a graph, all of them tensors.
        given: identities of its inputs.
        are_numbers_fixed: whether numbers in the value are the same in every call. Else they may be sizes.

    Returns:
        None where the value holds something else, which may be one that was there before.
    """
    if type(value) is tuple and len(value) == len(outputs) and all(map(_is, value, outputs)):
        return tuple
    found = _Maker(outputs, given, are_numbers_fixed).of(value)
    return None if found is None else lambda outputs: found(outputs, {})


def _is(one: Any, other: Any) -> bool:
    return one is other


class _Maker:
    def __init__(self, outputs: Sequence[Any], given: Collection[int], are_numbers_fixed: bool) -> None:
        self._at = {id(output): at for at, output in enumerate(outputs)}
        self._same = (*_SAME, *_NUMBERS) if are_numbers_fixed else _SAME
        self._known: dict[int, _Part | None] = {}
        # What holds one of these has been made in the call: it was not there before.
        self._new = self._at.keys() - set(given)

    def of(self, value: Any) -> _Part | None:
        key = id(value)
        if isinstance(value, torch.Tensor):
            at = self._at.get(key)
            return None if at is None else lambda outputs, _: outputs[at]
        if isinstance(value, type) or type(value) in self._same:
            return lambda *_: value
        if key in self._known:  # it is one object, however often it is met
            return self._known[key]
        self._known[key] = None  # while its parts are looked at: one that holds itself is not made
        part = self._of_sequence(value) if type(value) in (tuple, list) else self._of_fields(value)
        if part is None:
            return None

        def once(outputs: Sequence[Any], made: _Made) -> Any:
            if key not in made:
                made[key] = part(outputs, made)
            return made[key]

        self._known[key] = once
        return once

    def _all_of(self, values: Sequence[Any]) -> list[_Part] | None:
        found = [self.of(each) for each in values]
        made = [each for each in found if each is not None]
        return made if len(made) == len(found) else None

    def _is_new(self, value: Any, parts: Iterable[Any]) -> bool:
        """Whether a value was made in the call, as its parts tell."""
        is_new = any(id(each) in self._new for each in parts)
        if is_new:
            self._new.add(id(value))
        return is_new

    def _of_sequence(self, value: Any) -> _Part | None:
        kind, made = type(value), self._all_of(value)
        is_new = self._is_new(value, value)
        if made is None or not (is_new or kind is tuple):
            return None
        return lambda outputs, known: kind([part(outputs, known) for part in made])

    def _of_fields(self, value: Any) -> _Part | None:
        """A dict; or an object that is all in its `__dict__`, and maybe an ordered dict besides."""
        kind, base = type(value), _base_of(value)
        if base is None:
            return None
        attributes = {} if kind is base else vars(value)
        items = {} if base is object else dict(base.items(value))
        parts = [*attributes.values(), *items.values()]
        made = self._all_of(parts)
        if made is None or not self._is_new(value, parts):
            return None
        fields = list(zip(attributes, made, strict=False))  # their names, without what they hold
        entries = list(zip(items, made[len(fields) :], strict=True))
        if kind is dict:
            return lambda outputs, known: {key: part(outputs, known) for key, part in entries}

        def make(outputs: Sequence[Any], known: _Made) -> Any:
            new = base.__new__(kind)
            if fields:
                new.__dict__.update({name: part(outputs, known) for name, part in fields})
            for key, part in entries:
                base.__setitem__(new, key, part(outputs, known))
            return new

        return make


def _base_of(value: Any) -> Any:
    """The class of which a value is made, before its attributes are set; None where that cannot be told."""
    kind: Any = type(value)
    if kind in (dict, collections.OrderedDict):
        return kind
    base = collections.OrderedDict if isinstance(value, collections.OrderedDict) else object
    is_plain = (
        kind.__new__ is base.__new__
        and (base is not object or not isinstance(value, (dict, list, tuple, set, torch.nn.Module)))
        and hasattr(value, "__dict__")
        and not hasattr(kind, "__del__")
        and not any(vars(each).get("__slots__") for each in kind.__mro__)
    )
    return base if is_plain else None
