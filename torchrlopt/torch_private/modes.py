"""The context of a call: modes, tracers, transforms and profilers, and how to suspend them."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._C._dynamo import eval_frame
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import TracingContext, tracing
from torch._logging._internal import trace_structured
from torch.autograd import forward_ad
from torch.fx._symbolic_trace import is_fx_symbolic_tracing
from torch.overrides import _pop_mode_temporarily as pop_function_mode
from torch.utils._python_dispatch import _disable_current_modes as without_dispatch_modes

Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = [
    "enable_python_dispatcher",
    "pop_function_mode",
    "trace_structured",
    "tracing",
    "without_dispatch_modes",
]

without_torch_function = torch._C.DisableTorchFunction
with_torch_function = torch._C._EnableTorchFunction
without_python_dispatcher = torch._C._DisablePythonDispatcher

is_any_autocast_enabled = torch._C._is_any_autocast_enabled
"""Whether autocast is on for any device; it takes a twentieth of the time of asking for each of them."""

is_profiled = torch._C._autograd._profiler_enabled
"""Whether a profiler of PyTorch records what this thread runs."""


def is_traced() -> bool:
    """Whether torch.jit or torch.fx traces this thread."""
    return bool(torch._C._is_tracing()) or is_fx_symbolic_tracing()


def is_traced_by_compiler() -> bool:
    """Whether Dynamo, AOTAutograd or torch.export traces this thread.

    `torch.compiler.is_compiling` is also True while another thread compiles (2.13).
    """
    if torch.compiler.is_dynamo_compiling():  # as Dynamo reads this; it is False in a call
        return True
    return TracingContext.try_get() is not None or torch._C._len_torch_dispatch_stack() > 0


def is_dispatched() -> bool:
    """Whether a mode sees the operators of this thread: that of `make_fx`, of fake tensors, or a user's."""
    return torch._C._len_torch_dispatch_stack() > 0


def is_transformed() -> bool:
    """Whether a transform of `torch.func` or forward-mode differentiation runs."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def uncompiled(function: Function) -> Function:
    """Have Dynamo end its graph before a call of the function, and compile nothing that it calls.

    `torch.compiler.disable` imports Dynamo.
    """
    assert isinstance(function, types.FunctionType)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = "it runs kernels"  # type: ignore[attr-defined]
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return function


def current_cuda_stream(device: int) -> int:
    """Return the address of a device's current stream; `torch.cuda.current_stream` takes 7 us."""
    return int(torch._C._cuda_getCurrentRawStream(device))
