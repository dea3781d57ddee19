"""Errors of the parts of a tensor: its rows, channels, pixels, and numbers of similar size.

The error of a whole tensor hides the errors of small numbers next to large ones: a pixel may be wrong by
twice its value next to one of a million, a channel of thousandths next to one of thousands, and the tail of a
sigmoid next to its middle.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from torchrlopt.judge.differences import Place
from torchrlopt.judge.tolerances import Tolerance

_FEWEST = 3
"""Minimum number of elements per part: the error of one or two may be nearly 0 by chance."""

_MOST_STORED = 1 << 12
"""Maximum number of sums of an output that are stored: as text each takes some twenty bytes."""

_NUM_SIZES = 1 << 10
_SIZE_SHIFT = 53
"""Low bits of a float64 to drop: ten bits of its exponent remain, so sizes differ by factors of 4."""


class Squares:
    """Sums of squares over the parts of a tensor, accumulated block by block.

    Whether a part is right depends on ratios of such sums, in which their counts cancel.
    """

    def __init__(self, shape: torch.Size, device: torch.device) -> None:
        self._shape = shape
        rank = len(shape)
        # Two passes over the elements; all other views are sums of these two.
        self._reduced = () if rank < 2 else (rank - 1, 1 if rank > 2 else 0)
        self._sums = [
            _zeros([1 if at == dim else size for at, size in enumerate(shape)], device)
            for dim in self._reduced
        ]
        self.sizes = _zeros([_NUM_SIZES], device)
        self.total = 0.0

    def add(self, place: Place, squares: torch.Tensor, sizes: torch.Tensor | None = None) -> None:
        """Add a block.

        Without `sizes`, see `sizes_of`, numbers are not grouped by size.
        """
        self.total += float(squares.sum())
        for dim, sums in zip(self._reduced, self._sums, strict=True):
            kept = tuple(slice(0, 1) if at == dim else each for at, each in enumerate(place))
            sums[kept] += squares.sum(dim, keepdim=True)
        if sizes is not None:
            self.sizes.index_add_(0, sizes.flatten(), squares.flatten())

    def as_lists(self) -> list[list[float]]:
        """Return the sums over rows and channels, rounded: the inverse of `put`."""
        return [[float(f"{each:.3g}") for each in sums.flatten().tolist()] for sums in self._sums]

    def put(self, lists: Sequence[Sequence[float]], total: float) -> None:
        """Set the sums over rows and channels, and over all.

        Raises:
            RuntimeError, TypeError, ValueError: they are malformed, or of another shape.
        """
        for sums, values in zip(self._sums, lists, strict=True):
            sums.copy_(torch.tensor(values, dtype=torch.float64).view(sums.shape))
        self.total = float(total)
        if not all(bool((sums.isfinite() & (sums >= 0)).all()) for sums in self._sums) or not self.total >= 0:
            raise ValueError("no sums of squares")

    @property
    def num_sums(self) -> int:
        """Number of the sums over rows and channels."""
        return sum(sums.numel() for sums in self._sums)

    def views(self) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
        """Yield sums over rows, channels and so on, each with the dimensions that its parts extend along."""
        rank = len(self._shape)
        for dim, sums in zip(self._reduced, self._sums, strict=True):
            if self._is_enough(sums):
                yield (dim,), sums
        for dim in range(rank if rank > 2 else 0):
            sums = self._sums[1] if dim == rank - 1 else self._sums[0]
            others = tuple(at for at in range(rank) if at != dim)
            if self._is_enough(alone := sums.sum(others, keepdim=True)):
                yield others, alone
        rest = tuple(range(2, rank))
        if rank > 3 and self._is_enough(both := self._sums[0].sum(rest, keepdim=True)):
            yield rest, both

    def _is_enough(self, sums: torch.Tensor) -> bool:
        return self._shape.numel() >= _FEWEST * sums.numel()


def _zeros(shape: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float64, device=device)


def sizes_of(reference: torch.Tensor) -> torch.Tensor:
    """Return the size class of each element, which grows by one per factor of 4; zeros are in class 0."""
    return reference.abs().contiguous().view(torch.int64) >> _SIZE_SHIFT


@dataclasses.dataclass(frozen=True)
class Excess:
    """A part that is farther from float64 than its tolerance allows.

    Attributes:
        part: a description of it.
        rmse: its root mean square error, as a multiple of the part's own root mean square.
        limit: the largest allowed `rmse`.
    """

    part: str
    rmse: float
    limit: float


class Local:
    """Accumulates reference, errors of both graphs and effect of noise for the parts of one output."""

    def __init__(self, shape: torch.Size, device: torch.device) -> None:
        self._shape = shape
        self._reference, self._old, self._new = (Squares(shape, device) for _ in range(3))
        self._noise: Squares | None = None
        self._known: tuple[Local, float] | None = None

    def add(self, place: Place, reference: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> None:
        """Add a block: the reference and both errors, all 0 for elements that are not compared."""
        sizes = sizes_of(reference)
        self._reference.add(place, reference.square(), sizes)
        self._old.add(place, old.square(), sizes)
        self._new.add(place, new.square(), sizes)

    def add_noise(self, place: Place, reference: torch.Tensor, error: torch.Tensor) -> None:
        """Add a block of the effect of noise on the reference."""
        if self._noise is None:
            self._noise = Squares(self._shape, reference.device)
        self._noise.add(place, error.square(), sizes_of(reference))

    def add_difference(self, place: Place, old: torch.Tensor, difference: torch.Tensor) -> None:
        """Add a block for which there is no float64 reference.

        Numbers are not grouped by size: many are differences of larger ones, and have their errors.
        """
        self._reference.add(place, old.square())
        self._new.add(place, difference.square())

    def allow(self, known: Local | Mapping[str, Any] | None, most: float) -> None:
        """Let parts err like the original, of which only the errors for other inputs are known.

        A part's error is assumed to be the same share both of that part and of the whole output, whichever is
        less: a part that happens to be near zero for one of the two inputs says nothing about the other.

        Args:
            known: for the other inputs, in this process or stored, see `as_dict`; without effect if it is of
                an output of another shape.
            most: upper bound on the share of the part, as a root mean square.
        """
        if isinstance(known, Mapping):
            known = self._like(known)
        if known is not None and known._shape == self._shape:
            self._known = known, most**2

    def as_dict(self) -> dict[str, Any] | None:
        """Return reference and errors of the original as numbers and lists; None if there are too many."""
        if self._reference.num_sums > _MOST_STORED:
            return None
        return {
            "total": self._reference.total,
            "reference": self._reference.as_lists(),
            "old": self._old.as_lists(),
        }

    def _like(self, stored: Mapping[str, Any]) -> Local | None:
        """Invert `as_dict` for an output of this shape; None if it is of another shape, or malformed."""
        found = Local(self._shape, self._reference.sizes.device)
        try:
            found._reference.put(stored["reference"], stored["total"])
            found._old.put(stored["old"], 0.0)
        except (KeyError, RuntimeError, TypeError, ValueError):
            return None
        return found

    def excess(self, tolerance: Tolerance) -> Excess | None:
        """Return the part that exceeds its limit by the largest factor; None if all are within theirs."""
        worst: Excess | None = None
        negligible = (
            self._shape.numel() * tolerance.smallest**2 + tolerance.least_share**2 * self._reference.total
        )
        for part, reference, old, new, noise in self._parts():
            own = tolerance.local_factor**2 * torch.maximum(old, noise)
            floor = tolerance.local_floor**2 * reference + negligible
            limit = torch.maximum(own, floor)
            ratio = new / limit
            at = int(ratio.nan_to_num(0.0).argmax())
            if not bool(ratio.flatten()[at] > 1.0):
                continue
            scale, error, most = (math.sqrt(float(each.flatten()[at])) for each in (reference, new, limit))
            found = Excess(_in_words(part, ratio, at), error / (scale or 1.0), most / (scale or 1.0))
            if worst is None or found.rmse / found.limit > worst.rmse / worst.limit:
                worst = found
        return worst

    def _parts(
        self,
    ) -> Iterator[tuple[tuple[int, ...], torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
        if self._known is None:
            yield from self._own_parts()
            return
        known, most = self._known
        share = self._reference.total / known._reference.total if known._reference.total > 0 else 0.0
        for own, other in zip(self._own_parts(), known._own_parts(), strict=True):
            part, reference, _, new, noise = own
            _, other_reference, old, *_ = other
            of_part = (old / other_reference).nan_to_num(0.0).clamp(max=most) * reference
            yield part, reference, torch.minimum(of_part, share * old), new, noise

    def _own_parts(
        self,
    ) -> Iterator[tuple[tuple[int, ...], torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
        for views in zip(*(each.views() for each in self._squares()), strict=True):
            (part, reference), (_, old), (_, new), (_, noise) = views
            yield part, reference, old, new, noise
        # zeros have no size class
        reference, old, new, noise = (each.sizes[1:] for each in self._squares())
        yield (), reference, old, new, noise

    def _squares(self) -> tuple[Squares, Squares, Squares, Squares]:
        return self._reference, self._old, self._new, self._noise or self._old


def _in_words(dims: tuple[int, ...], sums: torch.Tensor, at: int) -> str:
    """Describe the part that the sum at this index belongs to."""
    if not dims:
        return f"numbers from {2.0 ** (2 * (at + 1) - 1023):.2g} to 4 times as much"
    place = [int(each) for each in torch.unravel_index(torch.tensor(at), sums.shape)]
    return f"[{', '.join(':' if dim in dims else str(each) for dim, each in enumerate(place))}]"
