"""Checks that floating point outputs are as close to float64 as the original's, in total and part by part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from torchrlopt.errors import UnsupportedError, VerificationError
from torchrlopt.judge import differences
from torchrlopt.judge.conditioning import MOST_PAIRS, Carried, Conditioning, carried_blocks
from torchrlopt.judge.local import Excess, Local
from torchrlopt.judge.tolerances import TOLERANCES, Tolerance

_MOST_KNOWN = 2.0
"""Upper bound on the original's known error that is accepted, as a multiple of the tolerance's floor."""

_MOST_CARRIED = 8.0
"""Multiple of the rounding errors that a float64 graph is estimated to carry that is accepted."""

_TODO = "report this graph: a substitution or the lowering is wrong"


class Own(NamedTuple):
    """The original's own error in one output, measured against float64; 0 for integers.

    Attributes:
        rmse: root mean square error, as a fraction of max|y|.
        largest: maximum error, as a fraction of max|y|.
        parts: of the output, with their errors, or as another process has stored them; None if not known.
    """

    rmse: float = 0.0
    largest: float = 0.0
    parts: Local | Mapping[str, Any] | None = None


def compare_floats(
    reference: torch.Tensor,
    old: torch.Tensor,
    new: torch.Tensor,
    place: str,
    work: torch.dtype | None = None,
    conditioning: Conditioning | None = None,
    index: int = 0,
    is_extreme: bool = False,
) -> tuple[float, Own]:
    """Compare an output of the rewritten graph with float64.

    Args:
        reference: the output in float64.
        old: of the original, in its own dtype.
        new: of the rewritten graph.
        place: which output it is, for the message.
        work: the dtype it was computed in, see `computed_in`.
        conditioning: consulted if a part is farther from float64 than the original explains, and if float64
            outputs differ by much for their size; without it, both count as wrong.
        index: of the output in the graph, for `conditioning`.
        is_extreme: whether one number may be far larger than all others, with an error by chance: then only
            the errors of parts are checked, which leave more room for chance.

    Returns:
        The error of `new` as a multiple of that of `old`, and the error of `old`.

    Raises:
        UnsupportedError: there are no tolerances for the dtype.
        VerificationError: an error beyond them.
    """
    if old.is_complex():
        reference, old, new = (torch.view_as_real(x.resolve_conj()) for x in (reference, old, new))
    tolerance = _tolerance(old.dtype, place).of_work_in(work)
    scale = 0.0
    of_old, of_new = differences.Errors(), differences.Errors()
    local = Local(reference.shape, reference.device)
    for where, (ref, before, after) in differences.blocks(reference, old, new):
        finite = before.isfinite()
        if not torch.equal(before[~finite].nan_to_num(), after[~finite].nan_to_num()) or not torch.equal(
            finite, after.isfinite()
        ):
            raise VerificationError("NaN or infinite elements differ", where=place)
        # if the original itself overflows or the reference is not finite, there is nothing to compare with
        ignored = ~(finite & ref.isfinite())
        num_ignored = int(ignored.sum())
        before, after = (before - ref).abs_(), (after - ref).abs_()
        if num_ignored:
            ref, before, after = (x.masked_fill(ignored, 0.0) for x in (ref, before, after))
        scale = max(scale, float(ref.abs().max()))
        of_old.add(before, before.numel() - num_ignored)
        of_new.add(after, after.numel() - num_ignored)
        local.add(where, ref, before, after)
    if of_old.count == 0:
        return 0.0, Own()
    factor = tolerance.rmse_factor_of(of_old.count)
    rmse_limit = max(factor * of_old.rmse, tolerance.rmse_floor * scale)
    max_limit = max(tolerance.max_factor * of_old.largest, tolerance.max_floor * scale)
    is_beyond = not is_extreme and (of_new.rmse > rmse_limit or of_new.largest > max_limit)
    if is_beyond and tolerance is TOLERANCES[torch.float64]:
        # After cancellation the result is as small as the rounding errors, and differs by as much.
        rmse, largest = conditioning.carried(index, reference) if conditioning is not None else Carried()
        rmse_limit = max(rmse_limit, min(_MOST_CARRIED * rmse, tolerance.rmse_floor))
        max_limit = max(max_limit, min(_MOST_CARRIED * largest, tolerance.max_floor))
        is_beyond = of_new.rmse > rmse_limit or of_new.largest > max_limit
    elif is_beyond and of_new.rmse <= rmse_limit and conditioning is not None:
        # After an exponential a few large numbers hold most of the error, and the original's may be small by
        # chance: so the limit on the largest error also includes the estimated effect of rounding.
        largest = conditioning.carried(index, reference, MOST_PAIRS).largest
        max_limit = max(max_limit, tolerance.max_factor * largest)
        is_beyond = of_new.largest > max_limit
    if is_beyond:
        raise VerificationError(
            "the rewritten graph computes other numbers",
            where=place,
            expected=f"RMSE to float64 at most {rmse_limit:.3g}, maximum error at most {max_limit:.3g}",
            got=f"RMSE {of_new.rmse:.3g}, maximum error {of_new.largest:.3g}",
            todo=_TODO,
        )
    excess = _unexplained(local, tolerance, reference, conditioning, index)
    if excess is not None:
        raise VerificationError(
            "the rewritten graph computes other numbers",
            where=f"{place}, {excess.part}",
            expected=f"RMSE to float64 at most {excess.limit:.3g} times theirs",
            got=f"RMSE {excess.rmse:.3g} times theirs",
            todo=_TODO,
        )
    error = factor * of_new.rmse / rmse_limit if rmse_limit > 0 else 0.0
    return error, Own(of_old.rmse / scale, of_old.largest / scale, local) if scale > 0 else Own()


def _unexplained(
    local: Local,
    tolerance: Tolerance,
    reference: torch.Tensor,
    conditioning: Conditioning | None,
    index: int,
) -> Excess | None:
    """Return the part whose error exceeds its limit even when rounding noise is allowed for."""
    excess = local.excess(tolerance)
    if excess is None or conditioning is None:
        return excess
    for pair in conditioning.pairs(index):
        for noisy in pair:
            real = torch.view_as_real(noisy.resolve_conj()) if noisy.is_complex() else noisy
            for where, ref, error in carried_blocks(reference, real):
                local.add_noise(where, ref, error)
        excess = local.excess(tolerance)
        if excess is None:
            return None
    return excess


def are_close(old: torch.Tensor, new: torch.Tensor, own: Own, work: torch.dtype | None) -> bool:
    """Whether floats are within half the floor of the tolerance, or the known error. NaN is never close."""
    tolerance = TOLERANCES.get(old.dtype)
    if tolerance is None:
        return False
    tolerance = tolerance.of_work_in(work)
    scale, difference = 0.0, differences.Errors()
    local = Local(old.shape, old.device)
    for where, (wide_old, wide_new) in differences.blocks(old, new):
        found = (wide_new - wide_old).abs_()
        if not bool(found.isfinite().all()):
            return False
        scale = max(scale, float(wide_old.abs().max()))
        difference.add(found)
        local.add_difference(where, wide_old, found)
    # The known error may come from other weights, with which the graph loses more: cap it, and use float64.
    known_rmse = min(own.rmse, _MOST_KNOWN * tolerance.rmse_floor)
    known_largest = min(own.largest, _MOST_KNOWN * tolerance.max_floor)
    local.allow(own.parts, _MOST_KNOWN * tolerance.rmse_floor)
    return (
        difference.rmse <= max(tolerance.rmse_floor / 2, tolerance.rmse_factor * known_rmse) * scale
        and difference.largest <= max(tolerance.max_floor / 2, tolerance.max_factor * known_largest) * scale
        and local.excess(tolerance) is None
    )


def _tolerance(dtype: torch.dtype, place: str) -> Tolerance:
    found = TOLERANCES.get(dtype)
    if found is None:
        raise UnsupportedError("there is no measure of error for this dtype", where=place, got=dtype)
    return found
