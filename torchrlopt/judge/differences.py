"""Sums up differences between tensors block by block, so that only one block at a time is held in float64.

The outputs of a language model may be its largest tensors, and a dozen float64 copies of them would take more
memory than the model.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import torch

_BLOCK = 1 << 20
"""Elements: 8 MB in float64."""

Place = tuple[slice, ...]
"""The position of a block in its tensor."""


@dataclasses.dataclass
class Errors:
    """Errors of a set of elements.

    `squares` is the sum of the squared errors; `largest` is NaN if any error is.
    """

    count: int = 0
    squares: float = 0.0
    largest: float = 0.0

    def add(self, errors: torch.Tensor, count: int | None = None) -> None:
        """Add the non-negative errors of a block; if only `count` of them are valid, the others must be 0."""
        count = errors.numel() if count is None else count
        if count == 0:
            return
        self.count += count
        self.squares += float(errors.square().sum())
        found = float(errors.max())
        self.largest = found if math.isnan(found) else max(self.largest, found)

    @property
    def rmse(self) -> float:
        """Root mean square error; 0 if there are no elements."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


def blocks(*tensors: torch.Tensor) -> Iterator[tuple[Place, tuple[torch.Tensor, ...]]]:
    """Yield matching blocks of tensors of the same shape, detached and in float64.

    They are cut along the outermost dimensions of the first one's memory layout.
    """
    first = tensors[0]
    order = sorted(range(first.dim()), key=first.stride, reverse=True)
    for place in _places(first.shape, order, first.numel()):
        yield place, tuple(each.detach()[place].double() for each in tensors)


def _places(shape: Sequence[int], order: Sequence[int], count: int) -> Iterator[Place]:
    """Yield the blocks of a tensor of `count` elements, cut along the first dimensions in `order`."""
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
