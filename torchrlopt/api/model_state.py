"""What compiled code assumes about its model: attributes of the modules, and the layouts of their tensors.

Dynamo checks every assumption with a guard of its own, which takes long for many modules: after the model's
own work no guard is in the processor's caches. Nearly all hold as long as the dictionaries of the modules
hold the same objects, which one pass over these dictionaries shows. So the guards that follow from it are
left out. A call in which an object is another one that matters compiles anew.
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
from torchrlopt.processes import renew_locks_in_forks

_LAST_STEP = re.compile(r"(.*)(?:\.(\w+)|\['([^'\\]*)'\])", re.DOTALL)
"""A path as Dynamo writes it, split before its last attribute or key."""

_DICTS = (dict, OrderedDict)
_TENSORS = (torch.Tensor, nn.Parameter)
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

_FEW_FOLLOWED, _CALLS_BETWEEN = 8, 10
"""How often other objects may take the places of those that the code was compiled for, and once in how many
calls on average: looking at all of them takes about ten times as long as Dynamo's guards."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """An object that was reached from the model.

    Attributes:
        value: the object.
        path: the way from the model, as Dynamo writes it.
        parent: the place of the module or dictionary that it was reached through; None for the model.
        holder: the dictionary that holds it; None for the model.
        key: under which key.
    """

    value: Any
    path: str = ""
    parent: _Place | None = None
    holder: dict[str, Any] | None = None
    key: str = ""


@dataclasses.dataclass(slots=True)
class _Assumed:
    """What code assumes about the object at a path.

    Attributes:
        description: see `_description`.
        keys: all keys of a dictionary; None if others do not matter.
        absent: attributes that a module does not have itself.
    """

    description: Any
    keys: list[str] | None = None
    absent: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True)
class _Snapshot:
    """The objects that code relied on at one time.

    Attributes:
        attributes: compares the present ones with them; keeps none alive.
        constants: those that are compared by identity, so that no other takes the address of one.
        sharing: which tensors are one, see `_sharing`.
    """

    attributes: _C.Attributes
    constants: list[Any]
    sharing: list[int]


class ModelState:
    """What compiled code relies on. It keeps neither modules nor tensors alive, but the model.

    Args:
        model: where all paths begin.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._assumed: dict[str, _Assumed] = {}  # what leads to an object stands before it
        self._num_calls = self._num_followed = 0
        self._following = threading.Lock()
        renew_locks_in_forks(self, "_following")
        self._latest: _Snapshot | None = _Snapshot(_C.Attributes(), [], [])

    def are_implied(self, guards: Iterable[Any], model: str) -> list[bool]:
        """Return for each guard whether `still_holds` implies it from now on.

        Args:
            guards: as Dynamo passes them to a `guard_filter_fn`.
            model: where Dynamo finds the model, as an expression.
        """
        places: dict[str, _Place | None] = {"": _Place(self._model)}
        with self._following:
            implied = [self._is_implied(guard, model, places) for guard in guards]
            self._latest = self._snapshot()
        return implied

    def still_holds(self) -> bool:
        """Whether the code may run: all is unchanged, or equal where equal objects are as good."""
        self._num_calls += 1
        latest = self._latest
        return latest is not None and (latest.attributes.are_unchanged() or self._follows(latest))

    def _is_implied(self, guard: Any, model: str, places: dict[str, _Place | None]) -> bool:
        path = guard.orig_guard.name
        if not guard.has_value or not path.startswith(model):
            return False
        place = _find(path.removeprefix(model), places)
        if place is None or place.value is not guard.value:
            return False
        value = place.value
        if guard.guard_type == _OF_ABSENCE:
            name = getattr(guard.orig_guard.create_fn, "keywords", {}).get("attr")
            if not isinstance(value, nn.Module) or type(name) is not str or name in vars(value):
                return False
            self._assume(place).absent.add(name)
        elif guard.guard_type not in _checked_by(place):
            return False
        elif type(value) in _DICTS:
            self._assume(place).keys = list(value)
        else:
            self._assume(place)
        return True

    def _assume(self, place: _Place) -> _Assumed:
        """Return what is assumed about an object, after recording that and what leads to it."""
        if place.path not in self._assumed:
            if place.parent is not None:
                self._assume(place.parent)
            self._assumed[place.path] = _Assumed(_description(place.value))
        return self._assumed[place.path]

    def _follows(self, latest: _Snapshot) -> bool:
        """Whether all other objects are as good; if so, compare with them from now on.

        The code reads constants when it is compiled, and tensors in every call: others of the same layout may
        take their places, unless two of them become one. Looking at all takes milliseconds, so a program that
        replaces its weights in every call gets Dynamo's guards.
        """
        with self._following:
            if self._latest is not latest:
                return self._latest is not None and self._latest.attributes.are_unchanged()
            self._num_followed += 1
            new = None if self.is_volatile else self._snapshot()
            self._latest = new if new is not None and new.sharing == latest.sharing else None
            return self._latest is not None

    @property
    def is_volatile(self) -> bool:
        """Whether objects are replaced so often that this check does not pay."""
        is_frequent = self._num_followed * _CALLS_BETWEEN > self._num_calls
        return self._num_followed > _FEW_FOLLOWED and is_frequent

    def _snapshot(self) -> _Snapshot | None:
        """Return the present objects; None if one is not as it is assumed to be."""
        places: dict[str, _Place | None] = {"": _Place(self._model)}
        attributes, constants, tensors = _C.Attributes(), [], []
        for path, assumed in self._assumed.items():
            place = _find(path, places)
            if place is None or not _is_as_assumed(place.value, assumed):
                return None
            _add(attributes, place, assumed)
            if type(place.value) in _TENSORS:
                tensors.append(place.value)
            elif _is_constant(place.value):
                constants.append(place.value)
        return _Snapshot(attributes, constants, _sharing(tensors))


def _is_as_assumed(value: Any, assumed: _Assumed) -> bool:
    if _description(value) != assumed.description:
        return False
    if assumed.keys is not None and list(value) != assumed.keys:
        return False
    return not assumed.absent or assumed.absent.isdisjoint(vars(value))


def _add(attributes: _C.Attributes, place: _Place, assumed: _Assumed) -> None:
    """Let an object be compared from now on."""
    value = place.value
    if place.holder is not None:
        add = attributes.add_tensor if type(value) in _TENSORS else attributes.add_item
        add(place.holder, place.key, value)
    if isinstance(value, nn.Module):
        attributes.add_owner(value)
    for name in assumed.absent:
        attributes.add_absence(vars(value), name)
    if assumed.keys is not None:
        attributes.add_keys(value)


def _description(value: Any) -> Any:
    """What two objects have in common for which the same code is right."""
    if type(value) in _TENSORS:
        return _facts(value)
    # Not by "==", by which 0.0 equals -0.0, and 1 equals True in a tuple.
    return (type(value), repr(value)) if _is_constant(value) else type(value)


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
    return _Place(holder[name], path, parent, holder, name) if is_there else None


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
    is_of_norm = module is not None and type(module.value) in _NORMS
    if type(tensor) is not nn.Parameter and not is_of_norm:
        return False
    try:
        _C.TensorPlaces([tensor])
    except ValueError:
        return False
    return True


def _facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What Dynamo specialises code on."""
    kind = (type(tensor), tensor.dtype, tensor.device, tensor.layout)
    if tensor.layout is not torch.strided or tensor.is_nested:  # those have no sizes or strides
        return kind
    return *kind, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg(), tensor.is_inference()


def _sharing(tensors: Sequence[Any]) -> list[int]:
    """Number tensors by first appearance: equal for two sequences that repeat objects at the same places."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(id(each), len(numbers)) for each in tensors]
