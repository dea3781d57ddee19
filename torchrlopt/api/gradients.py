"""Does somebody differentiate through a call? The original runs then: the rewritten graph records nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
"""What holds no tensor."""


def is_differentiated(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a gradient with respect to an input may be asked for, or a transform of `torch.func` runs.

    Inputs are looked for in lists, tuples, mappings, dataclasses and whatever else PyTorch's pytree knows.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(map(_requires_grad, (*args, *kwargs.values())))


def _requires_grad(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    return not isinstance(value, PLAIN) and any(map(_requires_grad, _parts(value)))


def _parts(value: Any) -> Iterable[Any]:
    """What a container holds; nothing for any other object."""
    if isinstance(value, Mapping):
        return value.values()
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    leaves = tree_leaves(value)
    return [leaf for leaf in leaves if leaf is not value]
