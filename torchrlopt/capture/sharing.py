"""Which tensors lie in the same memory, so that writing to one changes the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten


def overlaps(outputs: Sequence[Any], inputs: Sequence[Any]) -> list[str | None]:
    """For each output the first input or earlier output that some of its elements belong to as well.

    Two rows of one matrix lie in one storage and have no element in common: nobody can tell them from two
    tensors of their own.
    """
    by_storage: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for index, tensor in enumerate(inputs):
        if isinstance(tensor, torch.Tensor) and tensor.numel() > 0:
            by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append((f"input {index}", tensor))
    found: list[str | None] = []
    for index, tensor in enumerate(outputs):
        if not isinstance(tensor, torch.Tensor) or tensor.numel() == 0:
            found.append(None)
            continue
        others = by_storage.setdefault(tensor.untyped_storage().data_ptr(), [])
        found.append(next((name for name, other in others if overlap(tensor, other)), None))
        others.append((f"output {index}", tensor))
    return found


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether tensors of one storage have bytes in common. They may be without data."""
    (first_a, last_a), (first_b, last_b) = _bytes(a), _bytes(b)
    if last_a <= first_b or last_b <= first_a:
        return False
    if a.element_size() != b.element_size():  # two numbers in one, and the like
        return True
    for one, (first, last), (start, end) in (
        (a, (first_a, last_a), (first_b, last_b)),
        (b, (first_b, last_b), (first_a, last_a)),
    ):
        if aten.is_non_overlapping_and_dense.default(one) and (first <= start < last or first < end <= last):
            return True
    # Ranges that overlap may be rows and columns that take turns.
    first = min(first_a, first_b) // a.element_size()
    places = torch.arange(max(last_a, last_b) // a.element_size() - first)
    seen = torch.zeros(len(places), dtype=torch.bool)
    seen[_elements(places, a, first)] = True
    return bool(seen[_elements(places, b, first)].any())


def _elements(places: torch.Tensor, tensor: torch.Tensor, first: int) -> torch.Tensor:
    return places.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - first).flatten()


def _bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of the tensor in its storage, and the one behind its last."""
    first = int(tensor.storage_offset())
    last = first + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first * tensor.element_size(), (last + 1) * tensor.element_size()
