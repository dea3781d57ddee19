"""Dynamo and AOTAutograd. Importing this imports PyTorch's compiler."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo import OptimizedModule
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.eval_frame import cached_backends
from torch._dynamo.exc import BackendCompilerFailed, RestartAnalysis, SkipFrame, TorchDynamoException
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import ConstantSource, is_constant_source
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew
from torch._guards import TracingContext

__all__ = [
    "AttributeMutationNew",
    "BackendCompilerFailed",
    "ConstantSource",
    "OptimizedModule",
    "RestartAnalysis",
    "SkipFrame",
    "TorchDynamoException",
    "TracingContext",
    "ValueMutationNew",
    "aot_autograd",
    "compile_lock",
    "is_constant_source",
    "reset_code",
]


def current_translator() -> Any:
    """What traces the code of the graph at hand. Asked inside a backend."""
    return InstructionTranslator.current_tx()


def source_of(node: torch.fx.Node) -> Any:
    """Where Dynamo found an input of its graph; None where it does not say."""
    return getattr(node, "_dynamo_source", None)


def weights_as_attributes() -> AbstractContextManager[Any]:
    """While Dynamo traces in here, weights become attributes of its graph: no call passes them any more.

    All of them do: what is not the model's own has to be guarded, see `guard_identity`.
    """
    patch: AbstractContextManager[Any] = torch._dynamo.config.patch(prepare_freezing=True)
    return patch


def guard_identity(source: Any) -> None:
    """Have Dynamo guard that the object at a source is the one it is now. Asked inside a backend."""
    install_guard(source.make_guard(GuardBuilder.ID_MATCH))


def forget_code(code: types.CodeType) -> None:
    """Let go of what Dynamo has compiled for `code`, when its last function is gone.

    Else it stays for ever: Dynamo's map from new code to old holds the old code, which holds the new one.
    """
    reset_code(code)


def forget_backend(backend: Callable[..., Any]) -> None:
    """Let go of a backend that will compile nothing more: Dynamo keeps each for `torch._dynamo.reset()`."""
    for key, kept in list(cached_backends.items()):
        if getattr(kept, "compiler_fn", kept) is backend:
            cached_backends.pop(key, None)
