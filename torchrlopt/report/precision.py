"""Precision in a report: which calls compute in bfloat16, and what the error budget has bought."""

from __future__ import annotations

import dataclasses
import math

_SHOWN = 6
"""Operators that `print` shows; the page shows all."""


@dataclasses.dataclass(frozen=True)
class Rung:
    """One point of the curve of error against time, as predicted.

    Attributes:
        error: of the outputs, root mean square, whatever the metric of the budget.
        us: time of the calls that may be lowered, in microseconds.
        num_lowered: calls in bfloat16.
        num_quantised: calls computed with 8-bit integers.
    """

    error: float
    us: float
    num_lowered: int
    num_quantised: int


@dataclasses.dataclass(frozen=True)
class Lowered:
    """What lower precision did to the calls of one operator.

    Attributes:
        operator: its name.
        num_lowered: calls in bfloat16.
        num_quantised: calls computed with 8-bit integers.
        num_calls: calls that may be.
        saved_us: time that they save, in microseconds, without conversions.
        error: predicted error of the outputs that they cause, relative.
    """

    operator: str
    num_lowered: int
    num_quantised: int
    num_calls: int
    saved_us: float
    error: float


@dataclasses.dataclass(frozen=True)
class PrecisionRecord:
    """How an error budget was used for one graph.

    Attributes:
        max_error: the budget.
        metric: by which the errors are measured.
        error: measured against float64 on the example inputs; None if nothing was lowered.
        error_of_all: measured, if everything that may be is in bfloat16, or with integers on processors that
            have units for those alone; None if that was not built, or is infinite.
        lowered: the calls in bfloat16, by their positions among those that may be lowered, and operators.
        quantised: likewise, those computed with 8-bit integers; their results are in bfloat16 if they are in
            `lowered`, too.
        is_split: whether products left in float32 multiply two parts of bfloat16 each, with an error of about
            2^-17, where that takes less time.
        num_calls: calls that may be lowered.
        operators: what lower precision did to each operator, the largest saving first.
        curve: what other budgets would buy.
        types: what operators of the rewritten graph compute in, by their keys in the drawing.
        reason: why nothing was lowered.
    """

    max_error: float
    metric: str
    error: float | None = None
    error_of_all: float | None = None
    lowered: tuple[str, ...] = ()
    quantised: tuple[str, ...] = ()
    is_split: bool = False
    num_calls: int = 0
    operators: tuple[Lowered, ...] = ()
    curve: tuple[Rung, ...] = ()
    types: tuple[tuple[int, str], ...] = ()
    reason: str | None = None

    def without_effect(self, reason: str) -> PrecisionRecord:
        """The record of the same budget where everything computes in float32.

        Args:
            reason: why.
        """
        return dataclasses.replace(
            self,
            error=None,
            lowered=(),
            quantised=(),
            is_split=False,
            operators=(),
            types=(),
            reason=reason,
        )

    def steps(self) -> list[tuple[float, float]]:
        """The curve for drawing: logarithm of the error to base 10, and milliseconds."""
        points = sorted({(each.error, each.us / 1e3) for each in self.curve if each.error > 0})
        return [(math.log10(error), ms) for error, ms in points] or [(0.0, 0.0)]

    def rows(self) -> list[tuple[str, str]]:
        """What `print` shows, as titles and texts."""
        budget = f"{self.metric} at most {self.max_error:.3g}"
        if self.error is None:
            return [("precision", f"{budget}: exact, {self.reason}")]
        used = f"{self.error:.2e} used ({self.error / self.max_error:.0%})"
        integers = f", {len(self.quantised)} with 8-bit integers" if self.quantised else ""
        split = ", products of float32 in two parts of bfloat16" if self.is_split else ""
        what = f"{len(self.lowered)} of {self.num_calls} calls in bfloat16{integers}{split}"
        rows = [("precision", f"{budget}, {used}, {what}")]
        most = sorted(self.operators, key=lambda each: -each.saved_us)[:_SHOWN]
        counts = [
            f"{each.num_lowered + each.num_quantised} of {each.num_calls} {each.operator}" for each in most
        ]
        if counts:
            rows.append(("  lowered", ", ".join(counts)))
        for each in self.curve:
            rows.append(("  other budgets", f"rms {each.error:.1e}: {each.us / 1e3:.2f} ms (predicted)"))
        return rows
