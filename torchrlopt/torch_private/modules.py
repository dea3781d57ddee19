"""Modules and graph modules: hooks, compilation in place, lazily generated code."""

from __future__ import annotations

from collections.abc import MutableMapping

import torch
from torch import nn
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
from torch.nn.modules.module import _has_any_global_hook

__all__ = ["LazyGraphModule"]


def has_hooks(model: nn.Module) -> bool:
    """Whether the model or a submodule has forward hooks, or a global module hook exists."""
    return _has_any_global_hook() or any(
        module._forward_hooks or module._forward_pre_hooks for module in model.modules()
    )


def is_training(model: object) -> bool:
    """Whether a module is in training mode.

    A module that torch.export made has no mode but that of its operators: it replaces its own `eval` by a
    function that raises, and `training` may be either.
    """
    return bool(getattr(model, "training", False)) and "eval" not in vars(model)


def buffers_of(module: nn.Module) -> MutableMapping[str, torch.Tensor | None]:
    """Return the buffers that the module itself holds, as they are at any time; `nn.Module` looks longer."""
    return module._buffers


def is_compiled_in_place(model: nn.Module) -> bool:
    """Whether `model.compile()` was called."""
    return model._compiled_call_impl is not None
