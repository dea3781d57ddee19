"""`Optimised`: a second object for the user's module, whose `forward` runs optimised.

Both objects have the same `__dict__`: parameters, submodules, hooks, the training mode and every other
attribute are shared by construction, including those that are set or deleted later. Slots are the original's.
The class is a subclass of the model's, so methods of the model (`generate`, `len`, indexing) work on it, and
if they call `self(...)` they reach the optimised `forward`. The original is unchanged: nothing is patched,
and its calls run as before.
"""

from __future__ import annotations

import abc
import copy
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from torchrlopt.api.runner import Runner
from torchrlopt.errors import UnsupportedError
from torchrlopt.options import Options
from torchrlopt.report import Report

_SLOTS = ("_torchrlopt_runner", "_torchrlopt_forward")
_OURS = ("report", "reports", "wait")


class _Forward:
    """The attribute `forward`: the object's own, which overrides any entry of that name in `__dict__`.

    Setting it replaces it on this object only. Otherwise a function that wraps the previous one would also be
    called by the original, and call itself.
    """

    def __get__(self, module: Optimised | None, owner: type[Optimised]) -> Callable[..., Any]:
        if module is not None:
            try:
                return module._torchrlopt_forward
            except AttributeError:  # made by calling the class, as slicing does: a plain model
                pass
        plain: Any = super(Optimised, owner)
        function = plain.forward
        return function if module is None else function.__get__(module, owner)  # type: ignore[no-any-return]

    def __set__(self, module: Optimised, function: Callable[..., Any]) -> None:
        object.__setattr__(module, "_torchrlopt_forward", function)

    def __delete__(self, module: Optimised) -> None:
        self.__set__(module, _forward_of(module._torchrlopt_runner))


class Optimised(torch.nn.Module):
    """A model behind the rlopt backend; made by `optimise`.

    Every object's class is a subclass of this class and of the model's, but `__class__` is the model's: names
    of classes are written into files, and models create others of their own class. If the model has
    attributes with the names below, they take precedence; `torchrlopt.reports(module)` then returns the
    reports.

    Attributes:
        report: what happened, over all graphs compiled so far.
        reports: one report per compiled graph, oldest first.
        wait: `report.wait`.
    """

    report: Report
    reports: list[Report]
    wait: Callable[[float | None], bool]
    _torchrlopt_runner: Runner
    _torchrlopt_forward: Callable[..., Any]

    forward = _Forward()

    def __init_subclass__(cls, **_: Any) -> None:
        """Do not call the model's hook: our class must not be registered as a class of models."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in _OURS:
                return getattr(self._torchrlopt_runner, name)
            raise

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_OURS]

    def __repr__(self) -> str:
        """The model's own text, with a remark on its first line."""
        first, newline, rest = super().__repr__().partition("\n")
        runner = getattr(self, "_torchrlopt_runner", None)
        remark = "" if runner is None else f"  # torchrlopt: {runner.describe()}"
        return f"{first}{remark}{newline}{rest}"

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        """Pickle the model and the options; the loaded object compiles in its first call."""
        return (optimised, (self._torchrlopt_runner.original, self._torchrlopt_runner.options))

    def __copy__(self) -> Optimised:
        runner = self._torchrlopt_runner
        return optimised(copy.copy(runner.original), runner.options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Optimised:
        runner = self._torchrlopt_runner
        copied = optimised(copy.deepcopy(runner.original, memo), runner.options)
        memo[id(self)] = copied
        return copied


def optimised(model: torch.nn.Module, options: Options) -> Optimised:
    """Return the model with an optimised `forward`, which is compiled in the first call.

    Raises:
        UnsupportedError: the model's class allows no subclass.
    """
    own = object.__new__(_subclass(type(model)))
    runner = Runner(model, options)
    object.__setattr__(own, "__dict__", model.__dict__)
    object.__setattr__(own, "_torchrlopt_runner", runner)
    object.__setattr__(own, "_torchrlopt_forward", _forward_of(runner))
    return own


def _subclass(base: type[torch.nn.Module]) -> type[Optimised]:
    """Make a subclass of ours and the model's class that looks like the model's.

    A metaclass may register models, or reject names that it knows. This is not a class of the user's, so only
    the parts of Python's own metaclasses run, not the user's metaclass's `__new__` and `__init__`.
    """
    body = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    body |= {"__slots__": _SLOTS, "__class__": property(lambda _: base, _change_class)}
    body |= {name: _Shared(member) for name, member in _members(base).items()}
    metaclass = type(base)
    plain: Any = next(each for each in metaclass.__mro__ if each in (type, abc.ABCMeta))
    try:
        return plain.__new__(metaclass, base.__name__, (Optimised, base), body)  # type: ignore[no-any-return]
    except TypeError as error:
        raise UnsupportedError(
            "the model's class allows no subclass",
            where=base.__qualname__,
            got=str(error),
            todo='torch.compile(model, backend="rlopt")',
        ) from error


class _Shared:
    """An attribute that has a slot in the model's class: it accesses the original's slot.

    Args:
        member: the slot's descriptor.
    """

    def __init__(self, member: types.MemberDescriptorType) -> None:
        self._member = member

    def __get__(self, module: Optimised | None, owner: type[Optimised]) -> Any:
        return self if module is None else self._member.__get__(_holder(module), owner)

    def __set__(self, module: Optimised, value: Any) -> None:
        self._member.__set__(_holder(module), value)

    def __delete__(self, module: Optimised) -> None:
        self._member.__delete__(_holder(module))


def _holder(module: Optimised) -> torch.nn.Module:
    """Return the owner of the slots: the object itself only if it is a plain model, made by its class."""
    try:
        return module._torchrlopt_runner.original
    except AttributeError:
        return module


def _members(base: type[torch.nn.Module]) -> dict[str, types.MemberDescriptorType]:
    """Return the slots of a class that are its attributes, by name."""
    names = {name for each in base.__mro__ for name in vars(each)}
    found = ((name, inspect.getattr_static(base, name)) for name in names)
    return {name: member for name, member in found if isinstance(member, types.MemberDescriptorType)}


def _change_class(module: Optimised, cls: type[torch.nn.Module]) -> None:
    """Change the class of both objects: parametrisations give a module a class with properties."""
    module._torchrlopt_runner.original.__class__ = cls
    vars(object)["__class__"].__set__(module, _subclass(cls))


def _forward_of(runner: Runner) -> Callable[..., Any]:
    """Return a function with the signature of the model's `forward`."""
    run = runner.__call__  # a bound method takes less time to call than an object

    def forward(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    return functools.update_wrapper(forward, runner.original.forward, updated=())
