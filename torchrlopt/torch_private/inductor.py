"""Inductor. Importing this module imports much of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch._inductor
from torch._inductor.codecache import PyCodeCache
from torch._inductor.exc import InvalidCxxCompiler

__all__ = ["PyCodeCache"]


def lacks_compiler(error: Exception) -> bool:
    """Whether Inductor failed because it found no C++ compiler."""
    return isinstance(getattr(error, "inner_exception", error), InvalidCxxCompiler)


def compile_module(module: torch.fx.GraphModule, examples: Sequence[Any], settings: dict[str, Any]) -> Any:
    """Compile an ATen graph with Inductor, in place, for its (fake) inputs and entries of its `config`."""
    return torch._inductor.compile(module, list(examples), options=settings)
