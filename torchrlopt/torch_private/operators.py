"""Operators: their overloads, schemas and kernels."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, TypeAlias

import torch
from torch._ops import OpOverload, OpOverloadPacket

__all__ = ["OpOverload", "OpOverloadPacket", "Schema"]

Schema: TypeAlias = torch._C.FunctionSchema

TRACED_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
"""Under which a Python kernel takes an operator apart while it is traced."""

nn_builtins = torch._C._nn
"""Functions in C++ of some operators, as `torch` has those of others."""

set_grad_enabled = torch._C._set_grad_enabled
"""What Dynamo's graphs call where the user's code switches gradients."""


def schema_of(operator: Any) -> Schema:
    """Names, types and aliasing of the arguments and results."""
    schema: Schema = operator._schema
    return schema


def base_name(operator: Any) -> str:
    """The name without namespace and overload, such as "add"; empty for what is no operator."""
    name: str = getattr(operator, "_opname", "")
    return name


def overload_name(operator: Any) -> str:
    """The name of the overload, such as "Tensor"."""
    name: str = operator._overloadname
    return name


def is_composite(operator: OpOverload) -> bool:
    """Whether it is made of other operators, which decide what its result shares memory with."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"))


def python_kernels(operator: OpOverload) -> MutableMapping[Any, Callable[..., Any]]:
    """The operator's kernels in Python, by dispatch key; `forget_dispatch` has to follow a change."""
    kernels: MutableMapping[Any, Callable[..., Any]] = operator.py_kernels
    return kernels


def forget_dispatch(operator: OpOverload) -> None:
    """Have the operator look its kernels up anew."""
    operator._dispatch_cache.clear()
