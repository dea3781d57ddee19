"""How far tensors are apart, added up piece by piece: no more of them than a piece is held in float64.

The outputs of a language model may be the largest tensors of all, and a dozen copies of them in float64 would
take more memory than the model.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch

_PIECE = 1 << 20
"""Elements: 8 MB in float64."""


@dataclasses.dataclass
class Errors:
    """Errors of some elements.

    Attributes:
        count: how many elements.
        squares: sum of the squared errors.
        largest: the largest error; NaN where one is.
    """

    count: int = 0
    squares: float = 0.0
    largest: float = 0.0

    def add(self, errors: torch.Tensor) -> None:
        """Add those of a piece, none of them negative."""
        if errors.numel() == 0:
            return
        self.count += errors.numel()
        self.squares += float(errors.square().sum())
        found = float(errors.max())
        self.largest = found if math.isnan(found) else max(self.largest, found)

    @property
    def rmse(self) -> float:
        """The root of their mean square; 0 for no elements."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


def pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Equal pieces of tensors of one shape, detached and in float64, one after the other.

    Args:
        tensors: real ones. Those with the strides of the first are not copied as a whole, if it is dense.
    """
    first = tensors[0]
    order = sorted(range(first.dim()), key=first.stride, reverse=True)
    flat = [each.detach().permute(order).reshape(-1) for each in tensors]
    for start in range(0, first.numel(), _PIECE):
        yield tuple(each[start : start + _PIECE].double() for each in flat)
