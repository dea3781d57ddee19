"""Chooses call by call what a graph computes in lower precision.

sensitivities -> times -> choice -> build -> measured error; if that misses the budget or uses little of it,
the choice is made again.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx

from torchrlopt import _C, report
from torchrlopt.compile.contestant import Contestant, keys_of, written
from torchrlopt.compile.recorded_calls import names_in, operator_of, places_of
from torchrlopt.executors.eager.executor import EagerCallable, assemble
from torchrlopt.executors.eager.inventory import inventory
from torchrlopt.executors.eager.kernels import int8
from torchrlopt.executors.lowering.fx_values import ORIGIN
from torchrlopt.executors.lowering.onnx_to_aten import lower_captured
from torchrlopt.executors.precision.retyped import lowerable, retyped
from torchrlopt.executors.registry import Lowered
from torchrlopt.executors.weights.static_part import static_inputs, static_nodes
from torchrlopt.judge import right
from torchrlopt.judge.budget import Budget, rms
from torchrlopt.options import Options
from torchrlopt.precision.assignment import Assignment, Choice
from torchrlopt.precision.sensitivity import sensitivities
from torchrlopt.precision.times import measured_times
from torchrlopt.precision.tries import MARGIN, Tried, tried
from torchrlopt.report import PrecisionRecord, Rung
from torchrlopt.torch_private.modes import without_dispatch_modes

_DIRECTIONS = 2
"""Reverse passes. Choices by one close 0.83 of the gap between constant sensitivities and two passes; by
eight, 0.99 (docs/agent.md)."""

ROOM = 1.2
"""The budget "bfloat16" as a multiple of the error on the example inputs: other inputs have other errors."""

_MOST_CORRECTED = 1.5
"""Most that the error of everything in bfloat16 corrects predictions by: larger ones are no first order."""

_SPLIT_SHARE = 0.1
"""Of the budget that the error of float32 in two parts may use: root mean squares add in squares, so that it
takes less than a hundredth from what else is lowered."""

_CURVE = (0.1, 0.3, 3.0, 10.0)
"""Budgets shown beside the user's, as multiples of it."""


@dataclasses.dataclass(frozen=True)
class WithinBudget:
    """A graph that computes partly in lower precision.

    Attributes:
        run: the graph; None if nothing was lowered.
        budget: that it keeps; None if the user's could not be determined.
        record: for the report.
        narrow: see `compiled.Lower`.
    """

    run: Lowered | None
    budget: Budget | None
    record: PrecisionRecord
    narrow: Callable[[float], tuple[Lowered, PrecisionRecord] | None] | None = None


class MixedPrecision:
    """A graph whose calls may compute in lower precision, and what is known of them.

    Without `has_bfloat16`, calls are lowered to 8-bit integers only.

    Attributes:
        inputs: the user's.
        calls: that may be lowered by their types.
        quantisable: those that may be computed with 8-bit integers.
    """

    def __init__(
        self,
        contestant: Contestant,
        graph: _C.Graph,
        exact: EagerCallable,
        options: Options,
        has_bfloat16: bool = True,
    ) -> None:
        captured = contestant.job.captured
        self._keys = keys_of(graph, contestant.job.program)
        self.inputs = contestant.inputs()
        self._exact, self._options = exact, options
        self._fakes: dict[Any, torch.Tensor] = {}
        self._static = static_inputs(captured, options.lowering)
        with without_dispatch_modes():
            self._module = lower_captured(written(graph, contestant.job), captured)
        self.calls = lowerable(self._module.graph, self._static)
        fixed = static_nodes(self._module.graph, self._static)
        self.quantisable = [each for each in self.calls if int8.supports(each, fixed)]
        self.is_split = False  # what stays in float32, see `split_if_exact`
        self._low = [each.name for each in self.calls if has_bfloat16]
        self._integers = [each.name for each in self.quantisable]

    def built(self, lowered: Collection[str], quantised: Collection[str] = ()) -> EagerCallable:
        """Build the graph with these calls in bfloat16, or computed with 8-bit integers."""
        with without_dispatch_modes():
            module = retyped(self._module, lowered, quantised, self._fakes, self.is_split)
            return assemble(module, self._static, self._options.lowering)

    def split_if_exact(self, budget: Budget, reference: Sequence[Any]) -> None:
        """Multiply float32 in two parts of bfloat16 from now on, if that uses little of the budget."""
        self.is_split = bool(self._low) and _C.kernel_has_matrix_unit()
        if not self.is_split:
            return
        built = self.built(())
        error = budget.error(right.run(built, self.inputs, "float32 in two parts"), reference)
        self.is_split = _has_two_parts(built) and error <= _SPLIT_SHARE * budget.max_error
        if self.is_split:
            self._split_error, self._exact = error, built

    @functools.cached_property
    def whole(self) -> EagerCallable:
        """Everything in bfloat16, or in integers without it: it bounds the gain, and gives the times."""
        return self.built(self._low, () if self._low else self._integers)

    @functools.cached_property
    def assignment(self) -> Assignment:
        """What may be chosen, with its measured times and sensitivities."""
        seed = self._options.search.seed
        with without_dispatch_modes():
            found = sensitivities(
                self._module,
                self.inputs,
                self._static,
                self.calls,
                _DIRECTIONS,
                seed,
                self.quantisable,
            )
        low = self.whole if self._low else None
        integers = self.whole if low is None else None
        if low is not None and self._integers:
            integers = self.built(self._low, self._integers)
        times = measured_times(self.calls, self._exact, low, integers, self.quantisable, self.inputs)
        return Assignment(self.calls, found, times)

    def as_stored(self, record: PrecisionRecord, reference: Sequence[Any]) -> WithinBudget | None:
        """Build a choice of an earlier process; None if it is of another graph or has too large an error."""
        names = names_in(self.calls, record)
        if names is None or (names[0] and not self._low):
            return None
        options = self._options.precision
        limit, of_all = options.max_error, record.error_of_all
        if not isinstance(limit, float):  # it depends on inputs and weights, and those may be others
            whole = right.run(self.whole, self.inputs, "everything in bfloat16")
            of_all = Budget.of(options, math.inf).error(whole, reference)
            limit = ROOM * of_all
            if math.isinf(limit):
                return None
        budget = Budget.of(options, limit)
        self.is_split = record.is_split
        run = self.built(*names)
        error = budget.error(right.run(run, self.inputs, "lower precision"), reference)
        if error > budget.max_error:
            self.is_split = False
            return None
        record = dataclasses.replace(record, max_error=limit, error=error, error_of_all=of_all)
        return WithinBudget(run, budget, record, self._narrowing(budget, reference, record, *names))

    def fitted(self, budget: Budget, reference: Sequence[Any], record: PrecisionRecord) -> WithinBudget:
        """Find a choice that keeps the budget; a few are built."""
        assignment, of_all = self.assignment, self.assignment.of_all()
        error_of_all = record.error_of_all or 0.0
        if math.isinf(error_of_all):  # integers change; JSON has no infinity
            record = dataclasses.replace(record, error_of_all=None)
        kept: list[EagerCallable] = []  # the last that is within the budget

        def error_of(choice: Choice) -> float:
            run = self.whole if choice == of_all else self.built(choice.lowered, choice.quantised)
            error = budget.error(right.run(run, self.inputs, "lower precision"), reference)
            if error <= budget.max_error:
                kept[:] = [run]
            return error

        target = _first_target(budget, error_of_all, of_all.error)
        found = tried(assignment.within, error_of, budget.max_error, target)
        is_faster = of_all.us < assignment.of_none().us
        if found.choice is None and error_of_all <= budget.max_error and is_faster:
            found, kept = (
                Tried(of_all, error_of_all),
                [self.whole],
            )  # an infinite error shows no way to the budget
        others = dict.fromkeys(assignment.within(target * factor) for factor in _CURVE)
        record = dataclasses.replace(record, curve=tuple(_rung(each) for each in others if not each.is_exact))
        choice = found.choice
        if choice is None and self.is_split:
            kept, found = [self._exact], Tried(assignment.of_none(), self._split_error)
            choice = found.choice
        if choice is None:
            return WithinBudget(None, None, dataclasses.replace(record, reason=found.reason))
        record = self.recorded(record, choice, found.error, kept[0])
        narrow = self._narrowing(budget, reference, record, choice.lowered, choice.quantised)
        return WithinBudget(kept[0], budget, record, narrow)

    def _narrowing(
        self,
        budget: Budget,
        reference: Sequence[Any],
        record: PrecisionRecord,
        lowered: Collection[str],
        quantised: Collection[str],
    ) -> Callable[[float], tuple[Lowered, PrecisionRecord] | None]:
        """Return what builds the graph again, predicted to keep the budget where it had a larger error."""

        def narrow(error: float) -> tuple[Lowered, PrecisionRecord] | None:
            nonlocal lowered, quantised
            choice = self.assignment.of(lowered, quantised)
            # Two parts of bfloat16 go first: these inputs may cancel more.
            if not self.is_split or choice.is_exact:
                choice = self.assignment.within(choice.error * MARGIN * budget.max_error / error)
                lowered, quantised = choice.lowered, choice.quantised
            self.is_split = False
            if choice.is_exact:
                return None
            run = self.built(lowered, quantised)
            own = budget.error(right.run(run, self.inputs, "lower precision"), reference)
            return run, self.recorded(record, choice, own, run)

        return narrow

    def recorded(
        self, record: PrecisionRecord, choice: Choice, error: float, run: EagerCallable
    ) -> PrecisionRecord:
        """Enter a choice, its measured error and what was built of it in a record."""
        return dataclasses.replace(
            record,
            error=error,
            lowered=places_of(self.calls, choice.lowered),
            quantised=places_of(self.calls, choice.quantised),
            is_split=_has_two_parts(run),
            operators=_groups(self.assignment, choice),
            types=self._types(choice),
        )

    def _types(self, choice: Choice) -> tuple[tuple[int, str], ...]:
        """What operators of the drawing compute in, where that is not the type of the model."""
        found: dict[int, str] = {}
        for name, names in (("bfloat16", choice.lowered), ("int8", choice.quantised)):
            origins = (each.meta.get(ORIGIN, ()) for each in self.assignment.items if each.name in names)
            found |= {self._keys[node]: name for nodes in origins for node in nodes if node in self._keys}
        return tuple(sorted(found.items()))


def _first_target(budget: Budget, of_all: float, predicted: float) -> float:
    """The predicted error to begin with: root mean square, for whatever metric the budget is in."""
    if of_all == 0:
        return predicted
    scale = predicted / of_all
    if budget.metric is rms:  # as predictions are
        scale = min(max(scale, 1 / _MOST_CORRECTED), _MOST_CORRECTED)
    target = MARGIN * budget.max_error * scale
    return max(target, predicted) if of_all <= budget.max_error else target


def _has_two_parts(built: EagerCallable) -> bool:
    """Whether products of float32 multiply two parts of bfloat16."""
    return any("in two parts" in name for name in inventory(built.main.graph).packed)


def _rung(choice: Choice) -> Rung:
    return Rung(choice.error, choice.us, len(choice.lowered), len(choice.quantised))


def _groups(assignment: Assignment, choice: Choice) -> tuple[report.Lowered, ...]:
    """What lower precision did to each operator that takes time."""
    parts: dict[str, list[fx.Node]] = collections.defaultdict(list)
    for call in assignment.items:
        parts[operator_of(call)].append(call)
    found = []
    for operator, calls in parts.items():
        effects = [assignment.effect_of(call, choice) for call in calls]
        found.append(
            report.Lowered(
                operator,
                sum(call.name in choice.lowered and call.name not in choice.quantised for call in calls),
                sum(call.name in choice.quantised for call in calls),
                len(calls),
                sum(saved for saved, _ in effects),
                math.sqrt(sum(error for _, error in effects)),
            )
        )
    return tuple(sorted(found, key=lambda each: -each.saved_us))
