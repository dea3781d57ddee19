"""How far tensors are apart, added up block by block: no more of them than a block is held in float64.

The outputs of a language model may be the largest tensors of all, and a dozen copies of them in float64 would
take more memory than the model.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import torch

_BLOCK = 1 << 20
"""Elements: 8 MB in float64."""

Place = tuple[slice, ...]
"""Where a block is in its tensor."""


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

    def add(self, errors: torch.Tensor, count: int | None = None) -> None:
        """Add those of a block, none of them negative; where only some count, the others are 0."""
        count = errors.numel() if count is None else count
        if count == 0:
            return
        self.count += count
        self.squares += float(errors.square().sum())
        found = float(errors.max())
        self.largest = found if math.isnan(found) else max(self.largest, found)

    @property
    def rmse(self) -> float:
        """The root of their mean square; 0 for no elements."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


def blocks(*tensors: torch.Tensor) -> Iterator[tuple[Place, tuple[torch.Tensor, ...]]]:
    """Equal blocks of tensors of one shape, detached and in float64, one after the other.

    Args:
        tensors: real ones. They are cut along the outermost dimensions of the first one's memory.
    """
    first = tensors[0]
    order = sorted(range(first.dim()), key=first.stride, reverse=True)
    for place in _places(first.shape, order, first.numel()):
        yield place, tuple(each.detach()[place].double() for each in tensors)


def _places(shape: Sequence[int], order: Sequence[int], count: int) -> Iterator[Place]:
    """Blocks of `count` elements in all, cut along the first dimensions of `order`."""
    if count == 0:
        return
    if not order or count <= _BLOCK:
        yield tuple(slice(0, size) for size in shape)
        return
    dim, *rest = order
    inner = count // shape[dim]
    step = max(1, _BLOCK // inner)
    for start in range(0, shape[dim], step):
        size = min(step, shape[dim] - start)
        smaller = [size if at == dim else each for at, each in enumerate(shape)]
        for place in _places(smaller, rest, size * inner):
            yield (*place[:dim], slice(start, start + size), *place[dim + 1 :])
