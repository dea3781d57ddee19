"""Operators: their overloads, schemas and kernels."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, TypeAlias

import torch
from torch._ops import OpOverload, OpOverloadPacket

__all__ = ["OpOverload", "OpOverloadPacket", "Schema"]

Schema: TypeAlias = torch._C.FunctionSchema

TRACED_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
"""Dispatch keys whose Python kernels decompose an operator during tracing."""

nn_builtins = torch._C._nn
"""C++ functions of the operators that are not in `torch` itself."""

set_grad_enabled = torch._C._set_grad_enabled
"""The function that Dynamo's graphs call when user code toggles gradients."""


def schema_of(operator: Any) -> Schema:
    """Return the schema: names, types and aliasing of the arguments and results."""
    schema: Schema = operator._schema
    return schema


def base_name(operator: Any) -> str:
    """Return the name without namespace and overload, such as "add"; empty if not an operator."""
    name: str = getattr(operator, "_opname", "")
    return name


def overload_name(operator: Any) -> str:
    """Return the name of the overload, such as "Tensor"."""
    name: str = operator._overloadname
    return name


def is_composite(operator: OpOverload) -> bool:
    """Whether it is composed of other operators, which then determine the aliasing of its result."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"))


def python_kernels(operator: OpOverload) -> MutableMapping[Any, Callable[..., Any]]:
    """Return the operator's Python kernels by dispatch key; call `forget_dispatch` after a change."""
    kernels: MutableMapping[Any, Callable[..., Any]] = operator.py_kernels
    return kernels


def forget_dispatch(operator: OpOverload) -> None:
    """Clear the operator's dispatch cache."""
    operator._dispatch_cache.clear()
