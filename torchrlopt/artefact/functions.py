"""The functions that a stored graph may call, by name: nothing else can be named in a file."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from torchrlopt.artefact import operators
from torchrlopt.errors import ModelFormatError, UnsupportedError
from torchrlopt.executors.eager import dispatch
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.lowering import strides
from torchrlopt.torch_private.operators import OpOverload

_KERNELS = (
    indirect.convolve, indirect.pool, indirect.linear, indirect.shuffle, indirect.attention,
    indirect.recurrent, indirect.room_for, indirect.fill, indirect.joined, strides.reorder, strides.restride,
)  # fmt: skip
_NUMBERS = (
    operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg,
)  # fmt: skip
_ON_CUDA = ("cudnn_convolution_relu", "cudnn_convolution_add_relu")

_TABLE: dict[str, Callable[..., Any]] = {
    # what `dispatch.use_builtins` puts in place of operators
    **{
        f"torch.{function.__name__}": function
        for function in (*dispatch.BUILTINS.values(), torch.layer_norm)
        if function.__name__ not in _ON_CUDA
    },
    **{
        f"method.{name}": getattr(torch.Tensor, name)
        for name in (*dispatch.METHODS.values(), *dispatch.OF_SIZES.values())
    },
    # what `epilogues.taken_apart` adds
    "torch.relu_": torch.relu_,
    "torch.clamp_": torch.clamp_,
    "functional.hardsigmoid": functional.hardsigmoid,
    "functional.gelu": functional.gelu,
    **{f"kernel.{function.__name__}": function for function in _KERNELS},
    **{f"operator.{function.__name__}": function for function in _NUMBERS},
}
_NAMES = {function: name for name, function in _TABLE.items()}


def name_of(op: str, target: Any) -> str:
    """Return the name of what a node of an FX graph calls.

    Args:
        op: of the node.
        target: of the node.

    Raises:
        UnsupportedError: it is no function that a file may name.
    """
    name = None
    if op == "call_method":
        name = f"method.{target}"
    elif op == "call_function":
        name = str(target) if isinstance(target, OpOverload) else _NAMES.get(target)
    if name is None or _found(name) is None:
        raise UnsupportedError("a saved model cannot call this operator", got=str(target))
    return name


def function_of(name: object) -> Callable[..., Any]:
    """Return the function of a name.

    Raises:
        ModelFormatError: there is none.
    """
    function = _found(name) if isinstance(name, str) else None
    if function is None:
        raise ModelFormatError(
            "the file is damaged: it calls no function that it may", got=str(name)[:80], is_bug=False
        )
    return function


def checked_of(name: object) -> Callable[..., Any]:
    """Return the same for calls on tensors: it raises wherever operands do not fit each other."""
    function = function_of(name)
    return operators.checked(str(name).split(".")[1], function)


def _found(name: str) -> Callable[..., Any] | None:
    if name in _TABLE:
        return _TABLE[name]
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    if packet not in operators.NAMES.get(namespace, ()) or not overload:
        return None
    if namespace == "torchrlopt":
        from torchrlopt.ops import recurrent  # noqa: F401  # heavy; registers the operator
    found = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload, None)
    return found if isinstance(found, OpOverload) else None
