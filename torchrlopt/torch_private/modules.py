"""Modules and graph modules: hooks, compilation in place, lazily generated code."""

from __future__ import annotations

import weakref
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


_TRAINS: MutableMapping[nn.Module, bool] = weakref.WeakKeyDictionary()  # every call asks


def is_training(model: object) -> bool:
    """Whether a module is in training mode.

    A module that torch.export made has no mode but that of its operators: it replaces its own `eval` by a
    function that raises, and `training` may be either.
    """
    if isinstance(model, torch.fx.GraphModule) and "eval" in vars(model):
        if model not in _TRAINS:
            _TRAINS[model] = any(map(_trains, model.graph.nodes))
        return _TRAINS[model]
    return bool(getattr(model, "training", False))


def _trains(node: torch.fx.Node) -> bool:
    """Whether an operator is told to update statistics, or to drop elements."""
    schema = getattr(node.target, "_schema", None)
    names = [] if schema is None else [argument.name for argument in schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return given.get("training") is True or given.get("train") is True


def buffers_of(module: nn.Module) -> MutableMapping[str, torch.Tensor | None]:
    """Return the buffers that the module itself holds, as they are at any time; `nn.Module` looks longer."""
    return module._buffers


def is_compiled_in_place(model: nn.Module) -> bool:
    """Whether `model.compile()` was called."""
    return model._compiled_call_impl is not None
