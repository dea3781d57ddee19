"""What compiled code may know of a model: its modules with their attributes, and its weights.

Dynamo guards each of these facts by itself, at every call. `_C.ModuleWatch` looks at all of them at once, in
some nanoseconds each; here it is told which they are, and under which names Dynamo knows them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection
from typing import Any

import torch

from torchrlopt import _C

_MAX_DIM = 5  # sizes of more dimensions lie outside of what is looked at
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_DICTS = ("_parameters", "_buffers", "_modules")
_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclasses.dataclass(frozen=True)
class Watched:
    """A model as it was.

    Attributes:
        watch: says whether it still is.
        known: what is unchanged as long as it says so, as Python expressions.
        tensors: the parameters and buffers among it, by expression.
    """

    watch: _C.ModuleWatch
    known: frozenset[str]
    tensors: dict[str, torch.Tensor]


def watched(model: torch.nn.Module, name: str, wanted: Collection[str] | None = None) -> Watched | None:
    """Watch a model.

    Args:
        model: the root.
        name: an expression for it.
        wanted: what has to be known, as expressions; dicts of modules that are not among it are not looked
            at. None: all.

    Returns:
        None where this Python or this PyTorch does not let itself be watched.
    """
    if not _can_watch():
        return None
    found = _Found(wanted)
    found.add(model, name)
    try:
        return Watched(found.watch(), frozenset(found.known), found.tensors)
    except ValueError:
        return None


@functools.cache
def _can_watch() -> bool:
    """Whether changes are seen in this Python and this PyTorch; tried once, on a module of our own."""
    with torch.inference_mode(False), torch.no_grad():
        for change in (_set, _replace, _delete, _resize, _turn, _convert, _negate, _fix, _other_class):
            module, found = torch.nn.Linear(2, 3), _Found()
            found.add(module, "")
            try:
                watch = found.watch()
            except ValueError:
                return False
            module.weight.add_(1)
            is_seen_unchanged = watch.is_unchanged()
            change(module)
            if not is_seen_unchanged or watch.is_unchanged():
                return False
    return True


def _set(module: torch.nn.Linear) -> None:
    module.in_features = 4


def _replace(module: torch.nn.Linear) -> None:
    module.weight = torch.nn.Parameter(module.weight.data)


def _delete(module: torch.nn.Linear) -> None:
    del module.bias


def _resize(module: torch.nn.Linear) -> None:
    module.weight.data = module.weight.data[:2]


def _turn(module: torch.nn.Linear) -> None:
    module.weight.data = torch.zeros(2, 3).t()


def _convert(module: torch.nn.Linear) -> None:
    module.weight.data = module.weight.data.half()


def _negate(module: torch.nn.Linear) -> None:
    module.weight.data = torch._neg_view(module.weight.data)


def _fix(module: torch.nn.Linear) -> None:
    module.weight.requires_grad_(False)


def _other_class(module: torch.nn.Linear) -> None:
    module.__class__ = torch.nn.Identity  # type: ignore[assignment]  # which is what may happen


class _Found:
    """Modules, each after the one that holds it, with the dicts that are looked at."""

    def __init__(self, wanted: Collection[str] | None = None) -> None:
        self._wanted = wanted
        self.modules: list[torch.nn.Module] = []
        self.dicts: list[list[dict[str, Any]]] = []
        self.known: set[str] = set()
        self.tensors: dict[str, torch.Tensor] = {}
        self._seen: set[int] = set()

    def watch(self) -> _C.ModuleWatch:
        """Raises ValueError where this Python or this PyTorch does not let itself be watched."""
        tensors = list({id(tensor): tensor for tensor in self.tensors.values()}.values())
        return _C.ModuleWatch(self.modules, self.dicts, tensors, [tensor._cdata for tensor in tensors])

    def add(self, module: torch.nn.Module, name: str) -> None:
        """A module and all below it, the first time that it is met."""
        kind = type(module)
        if id(module) in self._seen or kind.__getattribute__ is not object.__getattribute__:
            return
        self._seen.add(id(module))
        attributes = vars(module)
        if any(type(attributes.get(each)) is not dict for each in _DICTS):
            return
        looked_at = [each for each in _DICTS if self._wanted is None or f"{name}.{each}" in self._wanted]
        self.modules.append(module)
        self.dicts.append([attributes[each] for each in looked_at])
        self.known |= {name, f"{name}.__dict__"}
        for each in looked_at:
            self.known.add(f"{name}.{each}")
            keys = range(len(attributes[each]))
            self.known |= {f"list(dict.keys({name}.{each}))[{at}]" for at in keys}
        for key, value in attributes.items():
            # What the class has under that name may come first, as properties do.
            if not hasattr(kind, key):
                self._add_value(value, f"{name}.{key}")
        for each in looked_at:
            if each == "_modules":
                continue
            for key, value in attributes[each].items():
                self._add_value(value, f"{name}.{each}[{key!r}]")
        for key, child in attributes["_modules"].items() if "_modules" in looked_at else ():
            if child is None:
                self.known.add(f"{name}._modules[{key!r}]")
            else:
                self.add(child, f"{name}._modules[{key!r}]")

    def _add_value(self, value: Any, expression: str) -> None:
        """What a dict of a module holds, if it is of a kind that can be told to be as it was."""
        if _is_constant(value):
            self.known.add(expression)
        elif type(value) in _TENSORS and value.layout is torch.strided and value.dim() <= _MAX_DIM:
            self.known.add(expression)
            self.tensors[expression] = value


def _is_constant(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_constant, value))
    return type(value) in _CONSTANTS
