"""Registers kernels as PyTorch operators: `torch.ops.torchrlopt.<name>`.

The schema declares mutation and aliasing, so passes, functionalisation and torch.export can query it as for
ATen operators. The dispatcher adds some microseconds per call, as much as a small convolution takes. After
all passes, the eager executor therefore calls the function behind an operator, its *direct form*, just as it
calls the builtins behind ATen's operators (`dispatch.use_builtins`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from torchrlopt.torch_private.modes import is_profiled
from torchrlopt.torch_private.operators import OpOverload

NAMESPACE = "torchrlopt"

_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")

DirectForm = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and the arguments with which it does what the operator call does."""

_DIRECT: dict[Any, Callable[..., DirectForm]] = {}

_dispatched = threading.local()
"""Whether the call came through the dispatcher, which has already recorded it in the profiler."""


def define(
    schema: str,
    direct: Callable[..., DirectForm],
    fakes: Mapping[Any, Callable[..., Any]],
    key: str = "CPU",
) -> OpOverload:
    """Define an operator.

    Args:
        schema: as for `torch.library.define`, with the name but without its namespace.
        direct: maps the operator's arguments to its direct form.
        fakes: maps the function of a direct form to its implementation for fake tensors.
        key: dispatch key of the implementation.
    """
    name, returns = schema.partition("(")[0], schema.rpartition("->")[2].strip()

    def run(*args: Any) -> Any:
        function, given = direct(*map(_plain, args))
        _dispatched.now = True
        try:
            result = function(*given)
        finally:
            _dispatched.now = False
        return None if returns == "()" else result

    def fake(*args: Any) -> Any:
        function, given = direct(*args)
        result = fakes[function](*given)
        return None if returns == "()" else result

    _LIBRARY.define(schema)
    _LIBRARY.impl(name, run, key)
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
    overload: OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    _DIRECT[overload] = direct
    return overload


def _plain(value: Any) -> Any:
    """A parameter as a plain tensor: kernels do not accept subclasses."""
    is_parameter = isinstance(value, torch.nn.Parameter)
    return value.detach().as_subclass(torch.Tensor) if is_parameter else value


def composite(schema: str, function: Callable[..., Any]) -> OpOverload:
    """Define an operator composed of ATen calls, for every device; its schema declares new memory."""
    return define(schema, straight(function), {function: function}, "CompositeExplicitAutograd")


def straight(function: Callable[..., Any]) -> Callable[..., DirectForm]:
    """The direct form of an operator that takes the arguments of a function."""
    return lambda *args: (function, args)


def direct_form(node: fx.Node) -> DirectForm:
    """The direct form of a call of one of our operators; for any other node its target and arguments."""
    direct = _DIRECT.get(node.target)
    return (node.target, node.args) if direct is None else direct(*node.args)  # type: ignore[return-value]


def is_ours(target: Any) -> bool:
    """Whether a call's target is one of our operators."""
    return target in _DIRECT


def recorded(name: str, call: Callable[..., Any], *args: Any) -> Any:
    """Call the function of a direct form so that PyTorch's profiler records it."""
    if is_profiled() and not getattr(_dispatched, "now", False):
        with torch.profiler.record_function(f"{NAMESPACE}::{name}"):
            return call(*args)
    return call(*args)
