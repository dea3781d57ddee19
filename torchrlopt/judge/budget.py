"""Error budgets: how far outputs may be from float64 if the user allows more than rounding."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchrlopt.errors import BudgetError, RlOptError, UnsupportedError
from torchrlopt.judge import right
from torchrlopt.options import ERROR_METRICS, PrecisionOptions

Metric = Callable[[Sequence[Any], Sequence[Any]], float]
"""Takes the outputs of a graph and those in float64, and returns the error."""


def rms(outputs: Sequence[Any], reference: Sequence[Any]) -> float:
    """Root mean square of the difference over that of the reference; of the worst floating output.

    Infinite if an integer or boolean differs.
    """
    return max((_rms(new, ref) for new, ref in _pairs(outputs, reference)), default=0.0)


def top1(outputs: Sequence[Any], reference: Sequence[Any]) -> float:
    """Share of rows whose largest entry is another one; of the worst floating output.

    Infinite if an integer or boolean differs.
    """
    return max((_top1(new, ref) for new, ref in _pairs(outputs, reference)), default=0.0)


METRICS: dict[str, Metric] = dict(zip(ERROR_METRICS, (rms, top1), strict=True))
"""The metrics that the option `error_metric` knows by name."""


def _pairs(outputs: Sequence[Any], reference: Sequence[Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    pairs = zip(outputs, reference, strict=True)
    return [(new, ref) for new, ref in pairs if isinstance(ref, torch.Tensor) and ref.numel()]


def _rms(new: torch.Tensor, ref: torch.Tensor) -> float:
    if not (ref.is_floating_point() or ref.is_complex()):
        return 0.0 if torch.equal(new, ref) else math.inf
    if ref.is_complex():
        new, ref = torch.view_as_real(new.resolve_conj()), torch.view_as_real(ref.resolve_conj())
    wide = ref.double()
    if not bool(wide.isfinite().all()):
        raise UnsupportedError("outputs in float64 are not finite, so that no error is relative to them")
    error, scale = float((new.double() - wide).square().mean()), float(wide.square().mean())
    if error == 0:
        return 0.0
    return math.sqrt(error / scale) if scale > 0 and math.isfinite(error) else math.inf


def _top1(new: torch.Tensor, ref: torch.Tensor) -> float:
    if not ref.is_floating_point() or ref.dim() == 0:
        return _rms(new, ref)
    return float((new.argmax(-1) != ref.argmax(-1)).double().mean())


@dataclasses.dataclass(frozen=True)
class Budget:
    """What the outputs may differ by."""

    max_error: float
    metric: Metric = rms
    name: str = "rms"

    @classmethod
    def of(cls, options: PrecisionOptions, max_error: float) -> Budget:
        """Make a budget in the user's metric."""
        metric = options.error_metric
        if isinstance(metric, str):
            return cls(max_error, METRICS[metric], metric)
        return cls(max_error, metric, str(getattr(metric, "__name__", "a function")))

    def error(self, outputs: Sequence[Any], reference: Sequence[Any]) -> float:
        """Measure the error of outputs.

        Raises:
            UnsupportedError: the metric fails, or returns no number.
        """
        try:
            found = float(self.metric(outputs, reference))
        except RlOptError:
            raise
        except Exception as error:  # the user's function may raise anything
            raise UnsupportedError("the error metric fails", where=self.name, got=repr(error)) from error
        if math.isnan(found):
            raise UnsupportedError("the error metric is not a number", where=self.name, got=found)
        return found

    def check(self, outputs: Sequence[Any], reference: Sequence[Any], where: str) -> float:
        """Return the error of outputs.

        Raises:
            BudgetError: it is beyond the budget.
            UnsupportedError: it cannot be measured.
        """
        found = self.error(outputs, reference)
        if found > self.max_error:
            raise BudgetError(
                "the error is beyond the budget",
                where=where,
                expected=f"{self.name} at most {self.max_error:.3g}",
                got=f"{found:.3g}",
            )
        return found

    def confirm(self, original: right.Callee, new: Sequence[Any], inputs: Sequence[Any], where: str) -> float:
        """Compare outputs with those of the exact original, whose own error is far below any budget.

        Raises:
            BudgetError: the error is beyond the budget.
            UnsupportedError: the original cannot be run on these inputs, or the error cannot be measured.
            VerificationError: the structure of the outputs differs.
        """
        return self.check(new, right.structured_like(original, new, inputs, where), where)
