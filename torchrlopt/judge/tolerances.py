"""How far a rewritten graph may be from float64: `TOLERANCES`, the table of tolerances."""

from __future__ import annotations

import dataclasses
import math

import torch


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Allowed error of a rewritten graph in one dtype, relative to the original's own error.

    The first four apply to all elements of an output together, the others to each of its parts separately
    (`local.py`). A part may lose more: small numbers lose digits when a Winograd tile mixes them with larger
    ones, and few numbers scatter more than many.

    Attributes:
        rmse_factor: root mean square error at most this multiple of the original's.
        max_factor: maximum error at most this multiple of the original's.
        max_floor: a maximum error below this multiple of max|y| always passes.
        rmse_floor: a root mean square error below this multiple of max|y| always passes.
        local_factor: root mean square error of a part at most this multiple of the original's there, or of
            the effect of rounding noise there.
        local_floor: one below this multiple of the part's root mean square always passes.
        smallest: one below this absolute value always passes.
        least_share: one below this share of the whole output's root mean square always passes: where a GELU
            is 1e-80, a polynomial leaves 1e-24.
    """

    rmse_factor: float
    max_factor: float
    max_floor: float
    rmse_floor: float
    local_factor: float
    local_floor: float
    smallest: float
    least_share: float

    def rmse_factor_of(self, count: int) -> float:
        """Return the multiple for an output of `count` elements, which is larger if there are few.

        `rmse_factor` is the actual loss allowed to another correct way to compute: kernels differ in how they
        sum. Chance comes on top. Of the root mean squares of n draws each of the same size, one is above
        `exp(3.1 / sqrt(n))` times the other once in a thousand times: twice for 20 elements, a tenth more for
        768.
        """
        return min(self.max_factor, self.rmse_factor * math.exp(3.1 / math.sqrt(count)))

    def of_work_in(self, dtype: torch.dtype | None) -> Tolerance:
        """The tolerance for numbers computed in a coarser dtype; its floors do not exceed float32's."""
        work = TOLERANCES.get(dtype) if dtype is not None else None
        if work is None or work.rmse_floor <= self.rmse_floor:
            return self
        float32 = TOLERANCES[torch.float32]
        return Tolerance(
            max(self.rmse_factor, work.rmse_factor),
            max(self.max_factor, work.max_factor),
            max(self.max_floor, min(work.max_floor, float32.max_floor)),
            max(self.rmse_floor, min(work.rmse_floor, float32.rmse_floor)),
            work.local_factor,
            max(self.local_floor, min(work.local_floor, float32.local_floor)),
            max(self.smallest, work.smallest),
            max(self.least_share, min(work.least_share, float32.least_share)),
        )


_TWO_DIGITS = 256.0
"""Two digits: what small numbers may lose to larger ones in one tile (`csrc/kernels/winograd.h`)."""


def _in_units_of_eps(
    dtype: torch.dtype,
    rmse_factor: float,
    max_floor: float = 8,
    local_factor: float = 8,
    local_floor: float = 8,
) -> Tolerance:
    eps = torch.finfo(dtype).eps
    return Tolerance(
        rmse_factor,
        8.0,
        max_floor * eps,
        8 * eps,
        local_factor,
        local_floor * eps,
        _smallest(dtype),
        eps * eps,
    )


def _smallest(dtype: torch.dtype) -> float:
    """Many kernels flush subnormal float32 to 0, and float16 has few digits left in its own subnormals."""
    eight_steps = 8 * torch.finfo(dtype).eps * torch.finfo(dtype).tiny
    return max(torch.finfo(torch.float32).tiny, eight_steps)


def _of_float8(dtype: torch.dtype) -> Tolerance:
    """With three bits or fewer, 8 eps would be as large as the numbers, so the floor is one rounding step."""
    eps = torch.finfo(dtype).eps
    return Tolerance(3.0, 8.0, eps, eps / 4, 8.0, eps, _smallest(dtype), eps * eps)


_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)

TOLERANCES: dict[torch.dtype, Tolerance] = {
    # the reference is float64 itself, so the original's own error is 0 and the floor decides, or `Carried`
    torch.float64: Tolerance(1.0, 1.0, 1e-7, 1e-7, _TWO_DIGITS, 1e-7, torch.finfo(torch.float32).tiny, 1e-30),
    # The largest of many rounding errors is some four to ten times their root mean square. The smallest error
    # of a single operator is a quarter of eps; 64 eps allows for two digits more.
    torch.float32: _in_units_of_eps(
        torch.float32, 2.0, max_floor=32, local_factor=_TWO_DIGITS, local_floor=64
    ),
    torch.float16: _in_units_of_eps(torch.float16, 3.0),
    torch.bfloat16: _in_units_of_eps(torch.bfloat16, 3.0),
    **{dtype: _of_float8(dtype) for dtype in _FLOAT8},
}
