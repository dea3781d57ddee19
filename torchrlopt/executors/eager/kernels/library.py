"""How a kernel becomes an operator of PyTorch: `torch.ops.torchrlopt.<name>`.

The schema says what a call writes to and what shares memory, so passes, functionalisation and torch.export
ask it as they ask ATen's. The dispatcher takes some microseconds a call, which is what a small convolution
takes; the eager executor therefore calls the function behind an operator in its *direct form* once all
passes are through, as it calls the builtins behind ATen's operators (`dispatch.use_builtins`).
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
"""A function and arguments with which it does what the call of an operator does."""

_DIRECT: dict[Any, Callable[..., DirectForm]] = {}

_dispatched = threading.local()
"""Whether the dispatcher has called, which has told the profiler already."""


def define(
    schema: str,
    direct: Callable[..., DirectForm],
    fakes: Mapping[Any, Callable[..., Any]],
    key: str = "CPU",
) -> OpOverload:
    """Define an operator.

    Args:
        schema: as `torch.library.define` takes it, the name without its namespace.
        direct: takes the operator's arguments and gives its direct form.
        fakes: by the function of a direct form what it gives for fake tensors.
        key: the dispatch key that it is implemented for.
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
    """A parameter as the tensor that it is: kernels read no subclass."""
    is_parameter = isinstance(value, torch.nn.Parameter)
    return value.detach().as_subclass(torch.Tensor) if is_parameter else value


def composite(schema: str, function: Callable[..., Any]) -> OpOverload:
    """Define an operator that is made of ATen's, for every device; its schema promises new memory."""
    return define(schema, lambda *args: (function, args), {function: function}, "CompositeExplicitAutograd")


def direct_form(node: fx.Node) -> DirectForm:
    """The direct form of a call of one of our operators; of any other node its target and arguments."""
    direct = _DIRECT.get(node.target)
    return (node.target, node.args) if direct is None else direct(*node.args)  # type: ignore[return-value]


def is_ours(target: Any) -> bool:
    """Whether a call's target is one of our operators."""
    return target in _DIRECT


def recorded(name: str, call: Callable[..., Any], *args: Any) -> Any:
    """Call what is behind an operator in its direct form, such that PyTorch's profiler knows of it."""
    if is_profiled() and not getattr(_dispatched, "now", False):
        with torch.profiler.record_function(f"{NAMESPACE}::{name}"):
            return call(*args)
    return call(*args)
