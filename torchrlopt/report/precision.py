"""Precision in a report: which calls compute in bfloat16, and what the error budget has bought."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Rung:
    """One point of the curve of error against time, as predicted.

    Attributes:
        error: of the outputs, relative.
        us: time of the calls that may be lowered, in microseconds.
        num_lowered: calls in bfloat16.
    """

    error: float
    us: float
    num_lowered: int


@dataclasses.dataclass(frozen=True)
class PrecisionRecord:
    """How an error budget was used for one graph.

    Attributes:
        max_error: the budget.
        metric: that the errors are measured by.
        error: measured against float64 on the example inputs; None if nothing was lowered.
        error_of_all: measured, if everything that may be is in bfloat16; None if that was not built.
        lowered: the calls in bfloat16, by their positions among those that may be lowered, and operators.
        num_calls: calls that may be lowered.
        operators: how many calls of each operator are in bfloat16, and how many there are.
        curve: what other budgets would buy.
        reason: why nothing was lowered.
    """

    max_error: float
    metric: str
    error: float | None = None
    error_of_all: float | None = None
    lowered: tuple[str, ...] = ()
    num_calls: int = 0
    operators: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    curve: tuple[Rung, ...] = ()
    reason: str | None = None

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> PrecisionRecord:
        """Make a record from its JSON."""
        fields = dict(given)
        fields["lowered"] = tuple(fields["lowered"])
        fields["operators"] = {name: tuple(counts) for name, counts in fields["operators"].items()}
        fields["curve"] = tuple(Rung(**each) for each in fields["curve"])
        return cls(**fields)

    def rows(self) -> list[tuple[str, str]]:
        """What `print` shows, as titles and texts."""
        budget = f"{self.metric} at most {self.max_error:.3g}"
        if self.error is None:
            return [("precision", f"{budget}: exact, {self.reason}")]
        used = f"{self.error:.2e} used ({self.error / self.max_error:.0%})"
        what = f"{len(self.lowered)} of {self.num_calls} calls in bfloat16"
        rows = [("precision", f"{budget}, {used}, {what}")]
        counts = [f"{name} {low} of {total}" for name, (low, total) in self.operators.items()]
        rows.append(("  in bfloat16", ", ".join(counts)))
        rows += [
            (
                "  other budgets",
                f"{each.error:.1e}: {each.us / 1e3:.2f} ms, {each.num_lowered} calls (predicted)",
            )
            for each in self.curve
        ]
        return rows
