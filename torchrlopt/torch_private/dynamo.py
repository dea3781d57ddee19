"""Dynamo and AOTAutograd. Importing this module imports PyTorch's compiler."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo import OptimizedModule
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.convert_frame import CatchErrorsWrapper, compile_lock
from torch._dynamo.eval_frame import cached_backends
from torch._dynamo.exc import BackendCompilerFailed, RestartAnalysis, SkipFrame, TorchDynamoException
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import ConstantSource, is_constant_source
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.types import ConvertFrameReturn
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


class _Asking(CatchErrorsWrapper):
    """Dynamo's handler of frames without code, which asks before it compiles one.

    Args:
        handler: Dynamo's own.
        admission: see `compiled`.
    """

    def __init__(
        self, handler: CatchErrorsWrapper, admission: Callable[[types.CodeType], AbstractContextManager[bool]]
    ) -> None:
        super().__init__(handler._torchdynamo_orig_backend, handler.hooks)
        self._admission = admission

    def __call__(self, frame: Any, *others: Any) -> Any:
        """Compile, or have the frame run as it is, this time only."""
        with self._admission(frame.f_code) as is_admitted:
            if is_admitted:
                return super().__call__(frame, *others)
        return ConvertFrameReturn(apply_to_code=False)


def compiled(
    function: Callable[..., Any],
    backend: Callable[..., Any],
    guard_filter: Callable[..., Any],
    admission: Callable[[types.CodeType], AbstractContextManager[bool]],
) -> Callable[..., Any]:
    """Compile a function as `torch.compile` does.

    Args:
        function: to be compiled in its first call.
        backend: of Dynamo.
        guard_filter: see `guard_filter_fn` of torch.compile.
        admission: called with the code of a frame that there is no compiled code for, before it runs; returns
            a context in which it is compiled, which says whether it may be. What it raises reaches the
            caller.
    """
    # As torch.compile does: Dynamo drops its weak references to weights for backends of registered names.
    backend.compiler_name = backend.__name__  # type: ignore[attr-defined]
    context: Any = torch._dynamo.optimize(backend, guard_filter_fn=guard_filter)
    if hasattr(context, "callback"):  # not if Dynamo is disabled
        context.callback = _Asking(context.callback, admission)
    own: Callable[..., Any] = context(function)
    return own


def is_compiling_elsewhere() -> bool:
    """Whether another thread compiles."""
    if compile_lock.acquire(blocking=False):
        compile_lock.release()
        return False
    return True


def current_translator() -> Any:
    """Return the instruction translator of the graph being compiled. Call it inside a backend."""
    return InstructionTranslator.current_tx()


def source_of(node: torch.fx.Node) -> Any:
    """Return the Dynamo source of a graph input, or None if unknown."""
    return getattr(node, "_dynamo_source", None)


def weights_as_attributes() -> AbstractContextManager[Any]:
    """Context manager in which Dynamo turns weights into graph attributes instead of inputs.

    This applies to all tensors: those that do not belong to the model must be guarded, see `guard_identity`.
    """
    patch: AbstractContextManager[Any] = torch._dynamo.config.patch(prepare_freezing=True)
    return patch


def recurrent_modules_allowed() -> AbstractContextManager[Any]:
    """Context manager in which Dynamo traces modules of recurrent layers."""
    patch: AbstractContextManager[Any] = torch._dynamo.config.patch(allow_rnn=True)
    return patch


def varying_sizes(sources: str) -> Callable[[], Callable[[], None]]:
    """Return a function after which inputs may have any size where code of this thread is compiled.

    With PyTorch 2.11, which keeps one setting for all threads, where any code is.

    That function returns another one, which ends this. Unlike `torch.compile(dynamic=True)`, numbers stay
    constants until they vary: substitutions do not know an epsilon that is an input. Nor do sizes that are
    equal by chance, such as those of a batch and of its heads, have to stay equal. `config.patch` would take
    several times as long, in every call.

    Args:
        sources: a regular expression for the inputs, in Dynamo's notation.
    """
    config: Any = torch.compiler.config  # a module of another class
    joined = ",".join(filter(None, (config.dynamic_sources, sources)))  # the user may have named others
    patcher: Callable[[], Callable[[], None]] = config._make_closure_patcher(dynamic_sources=joined)
    return patcher


def recompile_limit() -> int:
    """Return how many codes Dynamo keeps for one function; calls that need another one are not compiled."""
    limit: int = torch._dynamo.config.recompile_limit
    return limit


def guard_identity(source: Any) -> None:
    """Install a Dynamo guard on the identity of the object at a source. Call it inside a backend."""
    install_guard(source.make_guard(GuardBuilder.ID_MATCH))


def forget_code(code: types.CodeType) -> None:
    """Release what Dynamo has compiled for `code`, after its last function is gone.

    Otherwise it leaks: Dynamo's map from new to old code holds the old code, which holds the new one.
    """
    reset_code(code)


def forget_backend(backend: Callable[..., Any]) -> None:
    """Release a backend that is no longer needed: Dynamo keeps each until `torch._dynamo.reset()`."""
    for key, kept in list(cached_backends.items()):
        if getattr(kept, "compiler_fn", kept) is backend:
            cached_backends.pop(key, None)
