"""Tensors: fake tensors, versions, storages."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch._prims_common import clone_preserve_strides, is_contiguous_or_false
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "clone_preserve_strides",
    "is_contiguous_or_false",
]

version_of: Callable[[torch.Tensor], int] = operator.attrgetter("_version")
"""Version counter of a tensor (its number of in-place writes); RuntimeError for an inference tensor."""


def base_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the base of a view, or the tensor itself if it is not a view."""
    return tensor if tensor._base is None else tensor._base


def storage_key(storage: torch.UntypedStorage) -> int:
    """Return a key that is equal for two objects with the same underlying storage."""
    key: int = storage._cdata
    return key


def num_storage_holders(storage: torch.UntypedStorage) -> int:
    """Return the number of tensors and objects that hold a storage."""
    return int(torch._C._storage_Use_Count(storage._cdata))


def has_symbolic_sizes(fake: FakeTensor) -> bool:
    """Whether a size or a stride is symbolic."""
    return bool(fake._has_symbolic_sizes_strides)


def marked_dims(tensor: torch.Tensor) -> set[int]:
    """Return the dimensions that `torch._dynamo.mark_dynamic` marked as dynamic."""
    return set(getattr(tensor, "_dynamo_dynamic_indices", ()))


def dim_of(size: int | torch.SymInt) -> int | str:
    """Return one size of a fake tensor as an int or as the text of its symbolic expression."""
    if isinstance(size, int):
        return size
    expression = size.node.expr
    return int(expression) if expression.is_number else str(expression)
