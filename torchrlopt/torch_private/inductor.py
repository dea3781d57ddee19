"""Inductor. Importing this imports much of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch._inductor
from torch._inductor.codecache import PyCodeCache

__all__ = ["PyCodeCache"]


def compile_module(module: torch.fx.GraphModule, examples: Sequence[Any], settings: dict[str, Any]) -> Any:
    """Inductor's function for an ATen graph.

    Args:
        module: the graph; changed.
        examples: its inputs, fake or real.
        settings: of `torch._inductor.config`.
    """
    return torch._inductor.compile(module, list(examples), options=settings)
