"""Checks in every call that operands are finite, where a kernel needs them to be; see finiteness.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


def are_finite(tensors: Sequence[Any]) -> bool:
    """Whether all elements of all tensors are finite; a sum that overflows counts as infinite."""
    # One pass over each tensor; isfinite().all() takes three.
    return all(
        math.isfinite(tensor.sum(dtype=torch.float32).item())
        for tensor in tensors
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    )


@dataclass(frozen=True)
class Guard:
    """The values that must be finite for the selected kernels to be correct.

    Attributes:
        inputs: positions, among the arguments of the main part, of the tensors to check in each call.
        weights: position of the prologue's result that says whether all weights are finite; None if no
            weights are read.
    """

    inputs: tuple[int, ...]
    weights: int | None

    def holds(self, arguments: Sequence[Any]) -> bool:
        """Whether every value that the kernels depend on is finite."""
        if self.weights is not None and not arguments[-1]:
            return False
        return are_finite([arguments[position] for position in self.inputs])
