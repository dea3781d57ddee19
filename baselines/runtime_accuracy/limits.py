"""Error limits: a multiple of PyTorch's own error, or of the effect of the input's last digit."""

from __future__ import annotations

import dataclasses
import math

import torch

from baselines.runtime_accuracy.cases import Function

_LARGEST = torch.finfo(torch.float32).max
_LEAST = 1e-30  # smaller elements are judged by absolute error
_ULP = 2.0**-23
_OF_PYTORCH, _OF_CARRIED, _OF_ULP = 8, 8, 64
"""Accepted multiples of each; eight partial sums of 512 terms, a legitimate order, lose up to 64 ulps."""


@dataclasses.dataclass(frozen=True)
class Excess:
    """An error.

    Attributes:
        error: the largest, relative to the size of its element.
        fits: whether every element's error is within the limit.
    """

    error: float
    fits: bool


class Limit:
    """The error limit for some operand.

    Args:
        function: what is computed.
        x: the operand, of float32.
    """

    def __init__(self, function: Function, x: torch.Tensor) -> None:
        self._reference = function(x.double())
        own = self._relative(function(x))
        carried = torch.zeros_like(own)
        generator = torch.Generator().manual_seed(1)
        for _ in range(8):
            sign = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
            carried = carried.maximum(self._relative(function(x.double() * (1 + sign * _ULP))))
        self.pytorch = float(own.max())
        self._allowed = _OF_PYTORCH * self.pytorch + _OF_CARRIED * carried + _OF_ULP * _ULP

    def excess(self, found: torch.Tensor) -> Excess:
        """The error of a result."""
        error = self._relative(found)
        return Excess(float(error.max()), bool((error <= self._allowed).all()))

    def _relative(self, found: torch.Tensor) -> torch.Tensor:
        """Relative error of each element; 0 if float32 cannot represent the result, or there is none."""
        counts = self._reference.abs() < _LARGEST / 4
        error = (found.double() - self._reference).abs() / self._reference.abs().clamp(min=_LEAST)
        return torch.where(counts, error.nan_to_num(nan=math.inf), 0.0)
