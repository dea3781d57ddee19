"""What compiled code assumes about its model: attributes of the modules, and the layouts of their tensors.

Dynamo checks every assumption with a guard of its own. After the model's own work these guards are no longer
in the processor's caches, and for some fifty convolutions they take 0.3 to 0.5 ms a call. Nearly all hold as
long as the dictionaries of the modules hold the same objects; that takes one pass over these dictionaries. So
the guards that follow from it are left out, and a call in which an object is another one compiles anew.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from torchrlopt import _C

_LAST_STEP = re.compile(r"(.*)(?:\.(\w+)|\['([^'\\]*)'\])", re.DOTALL)
"""A path as Dynamo writes it, split before its last attribute or key."""

_DICTS = (dict, OrderedDict)
_TENSORS = (torch.Tensor, nn.Parameter, nn.Buffer)
_NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)

_OF_IDENTITY = frozenset({"TYPE_MATCH", "ID_MATCH"})
_OF_DICTS = _OF_IDENTITY | {"DICT_KEYS_MATCH", "DICT_CONTAINS", "SEQUENCE_LENGTH"}
_OF_CONSTANTS = _OF_IDENTITY | {"CONSTANT_MATCH", "EQUALS_MATCH", "SEQUENCE_LENGTH"}
_OF_TENSORS = _OF_IDENTITY | {"TENSOR_MATCH"}
_OF_ABSENCE = "NOT_PRESENT_IN_GENERIC_DICT"

_MISSING = object()
_Item = tuple[dict[str, Any], str, Any]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """An object that was reached from the model.

    Attributes:
        value: the object.
        parent: the place of the module or dictionary that it was reached through; None for the model.
        holder: the dictionary that holds it.
        key: under which key.
    """

    value: Any
    parent: _Place | None = None
    holder: dict[str, Any] = dataclasses.field(default_factory=dict)
    key: str = ""


class ModelState:
    """The objects that compiled code relies on, as they were when it was compiled.

    It keeps them alive, so that no other object is mistaken for one of them.

    Args:
        model: where all paths begin.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._owners: dict[int, tuple[nn.Module, type, dict[str, Any]]] = {}
        self._items: dict[tuple[int, str], _Item] = {}
        self._complete: dict[int, dict[str, Any]] = {}
        self._following = threading.Lock()
        self._latest = self._snapshot()

    def are_implied(self, guards: Iterable[Any], model: str) -> list[bool]:
        """Return for each guard whether `still_holds` implies it from now on.

        Args:
            guards: as Dynamo passes them to a `guard_filter_fn`.
            model: where Dynamo finds the model, as an expression.
        """
        places: dict[str, _Place | None] = {"": _Place(self._model)}
        implied = [self._is_implied(guard, model, places) for guard in guards]
        self._latest = self._snapshot()
        return implied

    def still_holds(self) -> bool:
        """Whether the code may run: all is unchanged, or equal where equal objects are as good."""
        return self._latest.is_unchanged() or self._follows()

    def _is_implied(self, guard: Any, model: str, places: dict[str, _Place | None]) -> bool:
        path = guard.orig_guard.name
        if not guard.has_value or not path.startswith(model):
            return False
        place = _find(path.removeprefix(model), places)
        if place is None or place.value is not guard.value:
            return False
        value = place.value
        if guard.guard_type == _OF_ABSENCE:
            if not self._add_absence(value, guard.orig_guard):
                return False
        elif guard.guard_type not in _checked_by(place):
            return False
        elif type(value) in _DICTS:
            self._complete[id(value)] = value
            for key, each in value.items():
                self._add(_Place(each, place, value, key))
        self._add(place)
        return True

    def _add_absence(self, module: Any, guard: Any) -> bool:
        """Record that a module has no attribute of its own by the name that a guard is about."""
        name = getattr(guard.create_fn, "keywords", {}).get("attr")
        if not isinstance(module, nn.Module) or type(name) is not str or name in vars(module):
            return False
        self._items[id(vars(module)), name] = (vars(module), name, _MISSING)
        return True

    def _add(self, place: _Place) -> None:
        """Record an object, and all that lead to it."""
        value = place.value
        if isinstance(value, nn.Module):
            self._owners[id(value)] = (value, type(value), vars(value))
        at = (id(place.holder), place.key)
        if place.parent is not None and at not in self._items:
            self._items[at] = (place.holder, place.key, value)
            self._add(place.parent)

    def _snapshot(self) -> _Snapshot:
        return _Snapshot(list(self._owners.values()), dict(self._items), list(self._complete.values()))

    def _follows(self) -> bool:
        """Whether all other objects are as good; if so, compare with them from now on.

        The code reads constants when it is compiled, and tensors in every call: others of the same layout may
        take their places, unless two of them become one.
        """
        with self._following:
            latest = self._latest
            if not latest.holders_are_unchanged():
                return False
            items = {
                at: (holder, key, holder.get(key, _MISSING)) for at, (holder, key, _) in self._items.items()
            }
            old, new = ([value for _, _, value in each.values()] for each in (self._items, items))
            if not all(map(latest.may_be, old, new)) or _sharing(old) != _sharing(new):
                return False
            self._items = items
            self._latest = self._snapshot()
            return True


class _Snapshot:
    """Objects at one time. It keeps them alive while another thread may still compare with them.

    Args:
        owners: modules, with their classes and dictionaries.
        items: what dictionaries hold.
        complete: dictionaries that have no other keys than those in `items`.
    """

    def __init__(
        self,
        owners: list[tuple[nn.Module, type, dict[str, Any]]],
        items: dict[tuple[int, str], _Item],
        complete: list[dict[str, Any]],
    ) -> None:
        self._kept = (owners, items, complete)
        self._sizes = [len(each) for each in complete]
        tensors = [value for _, _, value in items.values() if type(value) in _TENSORS]
        self._facts = {id(tensor): _facts(tensor) for tensor in tensors}
        # Guards on the layouts of others stay.
        self._tensors = list(filter(_is_readable, tensors))
        self._layouts = _C.TensorPlaces(self._tensors, with_addresses=False)
        given = [item if item[2] is not _MISSING else item[:2] for item in items.values()]
        self._attributes = _C.Attributes([module for module, _, _ in owners], given, complete)

    def is_unchanged(self) -> bool:
        """Whether all objects, and the layouts of tensors, are the same."""
        return self._attributes.are_unchanged() and self._layouts.is_of(self._tensors)

    def holders_are_unchanged(self) -> bool:
        """Whether modules and dictionaries can be looked into as before."""
        owners, _, complete = self._kept
        return all(
            type(each) is kind and vars(each) is own for each, kind, own in owners
        ) and self._sizes == [len(each) for each in complete]

    def may_be(self, old: Any, new: Any) -> bool:
        """Whether code that was compiled for one object is right for another one in its place."""
        if type(old) in _TENSORS:
            return type(new) in _TENSORS and _facts(new) == self._facts[id(old)]
        # Not by "==", by which 0.0 equals -0.0, and 1 equals True in a tuple.
        return new is old or (_is_constant(old) and _is_constant(new) and repr(new) == repr(old))


def _find(path: str, places: dict[str, _Place | None]) -> _Place | None:
    """Return what is at a path, if only attributes of modules and keys of dictionaries lead there."""
    if path not in places:
        places[path] = _step(path, places)
    return places[path]


def _step(path: str, places: dict[str, _Place | None]) -> _Place | None:
    step = _LAST_STEP.fullmatch(path)
    parent = _find(step[1], places) if step is not None else None
    if step is None or parent is None:
        return None
    name = step[3] if step[2] is None else step[2]
    holder: Any = parent.value if step[2] is None else _own_attributes(parent.value, name)
    is_there = type(holder) in _DICTS and name in holder
    return _Place(holder[name], parent, holder, name) if is_there else None


def _own_attributes(module: Any, name: str) -> dict[str, Any] | None:
    """The dictionary in which Python looks an attribute up first; None if it looks elsewhere."""
    kind: Any = type(module)
    if not isinstance(module, nn.Module) or kind.__getattribute__ is not object.__getattribute__:
        return None
    return None if hasattr(inspect.getattr_static(kind, name, None), "__set__") else vars(module)


def _checked_by(place: _Place) -> frozenset[str]:
    """The kinds of guards that hold as long as the object, or the layout of the tensor, is the same."""
    value = place.value
    if isinstance(value, nn.Module):
        return _OF_IDENTITY
    if type(value) in _DICTS:
        return _OF_DICTS if all(type(key) is str for key in value) else frozenset()
    if _is_constant(value):
        return _OF_CONSTANTS
    return _OF_TENSORS if type(value) in _TENSORS and _is_plain(place) else frozenset()


def _is_constant(value: Any) -> bool:
    return type(value) in _CONSTANTS or (type(value) in (tuple, torch.Size) and all(map(_is_constant, value)))


def _is_plain(place: _Place) -> bool:
    """Whether the layout is all that Dynamo checks of a tensor, and can be read.

    Of others than parameters it also checks whether they require gradients, and that no two are one; in eval
    mode, neither can be of the statistics of a norm.
    """
    tensor = place.value
    module = place.parent.parent if place.parent is not None else None
    is_of_norm = module is not None and isinstance(module.value, _NORMS)
    return (type(tensor) is nn.Parameter or is_of_norm) and _is_readable(tensor)


def _is_readable(tensor: torch.Tensor) -> bool:
    """Whether the layout can be read in C++."""
    try:
        _C.TensorPlaces([tensor], with_addresses=False)
    except ValueError:
        return False
    return True


def _facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What Dynamo specialises code on."""
    kind = (type(tensor), tensor.dtype, tensor.device, tensor.layout)
    if tensor.layout is not torch.strided:
        return kind
    return *kind, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg(), tensor.is_inference()


def _sharing(values: Sequence[Any]) -> list[int]:
    """Number tensors by first appearance: equal for two sequences that repeat objects at the same places."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(id(x), len(numbers)) for x in values if type(x) in _TENSORS]
