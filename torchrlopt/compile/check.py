"""Is a rewritten graph right? This is asked before it is used.

Right: structure exactly (count, dtype, shape, strides), integers bit for bit, floating point against a
float64 run of the original ATen graph, at most a small multiple of the original's own error. `TOLERANCES`
is the only table of tolerances in the project.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from torchrlopt.capture.sharing import overlaps
from torchrlopt.compile import differences
from torchrlopt.compile.conditioning import Carried, Conditioning
from torchrlopt.compile.float64 import float64_reference
from torchrlopt.compile.precision import computed_in
from torchrlopt.errors import RlOptError, UnsupportedError, VerificationError

Callee = Callable[..., Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Allowed error of a rewritten graph in one dtype, relative to the original's own error.

    Attributes:
        rmse_factor: root mean square error at most this multiple of the original's.
        max_factor: maximum error at most this multiple of the original's.
        max_floor: a maximum error below this multiple of max|y| always passes.
        rmse_floor: a root mean square error below this multiple of max|y| always passes.
    """

    rmse_factor: float
    max_factor: float
    max_floor: float
    rmse_floor: float

    def rmse_factor_of(self, count: int) -> float:
        """The multiple for an output of so many elements, which is larger where they are few.

        `rmse_factor` is what another right way to compute may lose in truth: kernels differ in how they
        sum. Chance comes on top. Of the root mean squares of n draws each of one size, one is above
        `exp(3.1 / sqrt(n))` times the other once in a thousand times: twice for 20 elements, a tenth more
        for 768.
        """
        return min(self.max_factor, self.rmse_factor * math.exp(3.1 / math.sqrt(count)))

    def of_work_in(self, dtype: torch.dtype | None) -> Tolerance:
        """That of numbers that were computed in a coarser dtype; its floors go no further than float32's."""
        work = TOLERANCES.get(dtype) if dtype is not None else None
        if work is None or work.rmse_floor <= self.rmse_floor:
            return self
        float32 = TOLERANCES[torch.float32]
        return Tolerance(
            max(self.rmse_factor, work.rmse_factor),
            max(self.max_factor, work.max_factor),
            max(self.max_floor, min(work.max_floor, float32.max_floor)),
            max(self.rmse_floor, min(work.rmse_floor, float32.rmse_floor)),
        )


def _in_units_of_eps(dtype: torch.dtype, rmse_factor: float, max_floor: float = 8) -> Tolerance:
    eps = torch.finfo(dtype).eps
    return Tolerance(rmse_factor, max_factor=8.0, max_floor=max_floor * eps, rmse_floor=8 * eps)


_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)

TOLERANCES: dict[torch.dtype, Tolerance] = {
    # the reference is float64 itself, so the original's own error is 0 and the floor decides, or `Carried`
    torch.float64: Tolerance(1.0, 1.0, 1e-7, 1e-7),
    # the largest of many rounding errors is some four to ten times their root mean square
    torch.float32: _in_units_of_eps(torch.float32, 2.0, max_floor=32),
    torch.float16: _in_units_of_eps(torch.float16, 3.0),
    torch.bfloat16: _in_units_of_eps(torch.bfloat16, 3.0),
    # with three bits and less, 8 eps would be as large as the numbers: one step of rounding, then
    **{dtype: Tolerance(3.0, 8.0, torch.finfo(dtype).eps, torch.finfo(dtype).eps / 4) for dtype in _FLOAT8},
}

_MOST_KNOWN = 2.0
"""So many times the floor of a tolerance counts, at most, of the error that the original is known to have."""


_MOST_CARRIED = 8.0
"""So many times the rounding errors that a float64 graph is estimated to carry count."""


class Own(NamedTuple):
    """The original's own error in one output, as float64 has shown it; 0 for integers.

    Attributes:
        rmse: root mean square error, as a fraction of max|y|.
        largest: maximum error, as a fraction of max|y|.
    """

    rmse: float = 0.0
    largest: float = 0.0


class Errors(NamedTuple):
    """What float64 has shown.

    Attributes:
        worst: root mean square error of the rewritten outputs, as a multiple of the original's own; where
            the floor of the tolerance decides, in proportion to it. The worst output counts.
        own: of each output.
    """

    worst: float
    own: tuple[Own, ...]


def compare(
    reference: Sequence[Any],
    original: Sequence[Any],
    rewritten: Sequence[Any],
    where: str = "outputs",
    work: Sequence[torch.dtype | None] = (),
    conditioning: Conditioning | None = None,
) -> Errors:
    """Compare the outputs of the rewritten graph with those of the original.

    Args:
        reference: outputs in float64.
        original: outputs of the original graph in its own dtypes.
        rewritten: outputs of the rewritten graph.
        where: what is compared, for the message.
        work: what each output was computed in, see `computed_in`; empty where that is not known.
        conditioning: is asked where float64 outputs are far apart for their size; without it they are wrong.

    Raises:
        VerificationError: a structure, an integer or an error beyond `TOLERANCES`.
    """
    if len(original) != len(rewritten):
        raise VerificationError(
            "the number of outputs differs", where=where, expected=len(original), got=len(rewritten)
        )
    worst, own = 0.0, [Own()] * len(original)
    known = work if len(work) == len(original) else [None] * len(original)
    for index, (ref, old, new) in enumerate(zip(reference, original, rewritten, strict=True)):
        place = f"{where}, output {index}"
        if not isinstance(old, torch.Tensor):
            if type(old) is not type(new) or old != new:
                raise VerificationError("an output differs", where=place, expected=old, got=new)
            continue
        _compare_structure(old, new, place)
        if old.numel() == 0:
            continue
        if old.is_floating_point() or old.is_complex():
            carried = functools.partial(conditioning.carried, index, ref) if conditioning else Carried
            error, own[index] = _compare_floats(ref, old, new, place, known[index], carried)
            worst = max(worst, error)
        elif not torch.equal(old, new):
            count = int((old != new).sum())
            raise VerificationError(
                "integer or bool elements differ", where=place, expected="bit-exact", got=f"{count} differ"
            )
    return Errors(worst, tuple(own))


def _compare_structure(old: torch.Tensor, new: Any, place: str) -> None:
    """Dtype, device, shape and the strides of the dimensions that have more than one element."""
    if _described(old) != _described(new):
        raise VerificationError(
            "dtype, device, shape or strides differ",
            where=place,
            expected=_described(old),
            got=_described(new),
        )


def _described(x: Any) -> tuple[Any, ...]:
    if not isinstance(x, torch.Tensor):
        return (type(x).__name__,)
    strides = () if x.numel() == 0 else tuple(st for s, st in zip(x.shape, x.stride(), strict=True) if s > 1)
    return str(x.dtype), str(x.device), tuple(x.shape), strides


def _tolerance(dtype: torch.dtype, place: str) -> Tolerance:
    found = TOLERANCES.get(dtype)
    if found is None:
        raise UnsupportedError("there is no measure of error for this dtype", where=place, got=dtype)
    return found


def _compare_floats(
    reference: torch.Tensor,
    old: torch.Tensor,
    new: torch.Tensor,
    place: str,
    work: torch.dtype | None,
    carried: Callable[[], Carried],
) -> tuple[float, Own]:
    """The error of `new` as a multiple of that of `old`, and that; raises VerificationError beyond it."""
    if old.is_complex():
        reference, old, new = (torch.view_as_real(x.resolve_conj()) for x in (reference, old, new))
    tolerance = _tolerance(old.dtype, place).of_work_in(work)
    scale = 0.0
    of_old, of_new = differences.Errors(), differences.Errors()
    for ref, before, after in differences.pieces(reference, old, new):
        finite = before.isfinite()
        if not torch.equal(before[~finite].nan_to_num(), after[~finite].nan_to_num()) or not torch.equal(
            finite, after.isfinite()
        ):
            raise VerificationError("NaN or infinite elements differ", where=place)
        # where the original itself overflows or the reference does not, there is nothing to compare with
        usable = finite & ref.isfinite()
        if bool(usable.any()):
            ref, before, after = ref[usable], before[usable], after[usable]
            scale = max(scale, float(ref.abs().max()))
            of_old.add((before - ref).abs())
            of_new.add((after - ref).abs())
    if of_old.count == 0:
        return 0.0, Own()
    old_rmse, new_rmse = of_old.rmse, of_new.rmse
    factor = tolerance.rmse_factor_of(of_old.count)
    rmse_limit = max(factor * old_rmse, tolerance.rmse_floor * scale)
    max_limit = max(tolerance.max_factor * of_old.largest, tolerance.max_floor * scale)
    if tolerance is TOLERANCES[torch.float64] and (new_rmse > rmse_limit or of_new.largest > max_limit):
        # What is left where sums cancel has the size of rounding errors, and differs by as much.
        rmse, largest = carried()
        rmse_limit = max(rmse_limit, min(_MOST_CARRIED * rmse, tolerance.rmse_floor))
        max_limit = max(max_limit, min(_MOST_CARRIED * largest, tolerance.max_floor))
    if new_rmse > rmse_limit or of_new.largest > max_limit:
        raise VerificationError(
            "the rewritten graph computes other numbers",
            where=place,
            expected=f"RMSE to float64 at most {rmse_limit:.3g}, maximum error at most {max_limit:.3g}",
            got=f"RMSE {new_rmse:.3g}, maximum error {of_new.largest:.3g}",
            todo="report this graph: a substitution or the lowering is wrong",
        )
    error = factor * new_rmse / rmse_limit if rmse_limit > 0 else 0.0
    return error, Own(old_rmse / scale, of_old.largest / scale) if scale > 0 else Own()


def verify(
    aten: torch.fx.GraphModule, original: Callee, rewritten: Callee, inputs: Sequence[Any], where: str = ""
) -> Errors:
    """Run both callables and the float64 reference on the same inputs and compare.

    Raises:
        UnsupportedError: the original cannot be run on these inputs.
        VerificationError: the rewritten graph is wrong, or fails to run.
        RlOptError: what the executor itself raises.
    """
    return verify_against(standard(aten, original, inputs, where), rewritten, inputs, where)


class Standard(NamedTuple):
    """What rewritten graphs are compared with; serves all graphs that are given equal inputs.

    Attributes:
        original: outputs of the original.
        reference: outputs in float64.
        sharing: see `overlaps`.
        work: see `computed_in`.
        conditioning: of the graph for these inputs; None where no output is float64.
    """

    original: tuple[Any, ...]
    reference: tuple[Any, ...]
    sharing: list[str | None]
    work: tuple[torch.dtype | None, ...]
    conditioning: Conditioning | None


def standard(
    aten: torch.fx.GraphModule, original: Callee, inputs: Sequence[Any], where: str = ""
) -> Standard:
    """Run the original and the float64 reference; raises UnsupportedError where that cannot be."""
    with _refused(where):
        old = tuple(original(*inputs))
        reference, sharing = float64_reference(aten, inputs), overlaps(old, inputs)
    # It holds the inputs, so only where it may be asked.
    is_wide = any(isinstance(x, torch.Tensor) and x.dtype in (torch.float64, torch.complex128) for x in old)
    conditioning = Conditioning(aten, inputs) if is_wide else None
    return Standard(old, reference, sharing, computed_in(aten), conditioning)


def verify_against(known: Standard, rewritten: Callee, inputs: Sequence[Any], where: str = "") -> Errors:
    """Compare a callable with what is known to be right for these inputs; see `verify`."""
    new = run(rewritten, inputs, where)
    _compare_sharing(known.sharing, new, inputs, where)
    return compare(known.reference, known.original, new, where or "outputs", known.work, known.conditioning)


def confirm(
    aten: torch.fx.GraphModule,
    original: Callee,
    new: Sequence[Any],
    inputs: Sequence[Any],
    where: str,
    own: Sequence[Own] = (),
) -> None:
    """Compare outputs of the rewritten graph with the original's; cheaper than `verify` where they are close.

    Numbers within half the floor of the tolerance of the original's are as right as `verify` asks, whatever
    the original's own error is. Where float64 has shown that error for other inputs, numbers may be as far
    from the original's as `verify` lets many numbers be from float64. Only where they are farther apart,
    float64 decides.

    Args:
        aten: the graph, for the float64 reference.
        original: computes what is right.
        new: outputs of the rewritten graph for these inputs.
        inputs: what it was called with.
        where: what is compared, for the message.
        own: the original's own error in each output, for these weights; empty where it is not known.

    Raises:
        UnsupportedError: the original cannot be run on these inputs.
        VerificationError: the outputs are wrong.
    """
    with _refused(where):
        old = tuple(original(*inputs))
    _compare_sharing(overlaps(old, inputs), new, inputs, where)
    known = own if len(own) == len(old) else [Own()] * len(old)
    work = computed_in(aten)
    if len(old) == len(new) and all(map(_is_close, old, new, known, work)):
        return
    with _refused(where):
        reference = float64_reference(aten, inputs)
    compare(reference, old, new, where, work, Conditioning(aten, inputs))


@contextmanager
def _refused(where: str) -> Iterator[None]:
    """Around runs of the original: the user's operators may refuse our inputs in any way."""
    try:
        with torch.no_grad():
            yield
    except Exception as error:
        raise UnsupportedError(
            "the original graph cannot be run on the inputs of the check", where=where, got=repr(error)
        ) from error


def _is_close(old: Any, new: Any, own: Own, work: torch.dtype | None) -> bool:
    """Within half the floor of the tolerance, or the known error. Equal bits are; NaN is not."""
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return type(old) is type(new) and bool(old == new)
    if _described(old) != _described(new):
        return False
    tolerance = TOLERANCES.get(old.dtype)
    if tolerance is None or old.numel() == 0:
        return old.numel() == 0 or (not old.is_floating_point() and torch.equal(old, new))
    tolerance = tolerance.of_work_in(work)
    scale, difference = 0.0, differences.Errors()
    for wide_old, wide_new in differences.pieces(old, new):
        found = (wide_new - wide_old).abs()
        if not bool(found.isfinite().all()):
            return False
        scale = max(scale, float(wide_old.abs().max()))
        difference.add(found)
    rmse = difference.rmse
    # The known error may be that of other weights, for which the graph loses more: float64, then.
    known_rmse = min(own.rmse, _MOST_KNOWN * tolerance.rmse_floor)
    known_largest = min(own.largest, _MOST_KNOWN * tolerance.max_floor)
    return (
        rmse <= max(tolerance.rmse_floor / 2, tolerance.rmse_factor * known_rmse) * scale
        and difference.largest <= max(tolerance.max_floor / 2, tolerance.max_factor * known_largest) * scale
    )


def run(rewritten: Callee, inputs: Sequence[Any], where: str = "") -> tuple[Any, ...]:
    """Outputs of the rewritten graph.

    Raises:
        VerificationError: it fails.
        RlOptError: what the executor itself raises.
    """
    try:
        with torch.no_grad():
            return tuple(rewritten(*inputs))
    except RlOptError:
        raise
    except Exception as error:  # a wrong lowering may fail in any way inside torch
        raise VerificationError("the rewritten graph fails to run", where=where, got=repr(error)) from error


def _compare_sharing(
    expected: list[str | None], new: Sequence[Any], inputs: Sequence[Any], where: str
) -> None:
    got = overlaps(new, inputs)
    if expected != got:
        raise VerificationError(
            "outputs share memory with other tensors than the original's do",
            where=where,
            expected=expected,
            got=got,
        )
