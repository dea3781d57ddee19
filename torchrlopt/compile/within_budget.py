"""Lowers a rewritten graph to bfloat16 call by call, within the user's error budget.

sensitivities -> times -> choice -> build -> measured error; if that misses the budget, the choice is made
again for a smaller one.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import onnx_ir
import torch
from torch import fx

from torchrlopt.compile.contestant import Contestant
from torchrlopt.errors import RlOptError
from torchrlopt.executor_table import BASELINE
from torchrlopt.executors.eager.executor import EagerCallable, assemble
from torchrlopt.executors.lowering.onnx_to_aten import lower_captured
from torchrlopt.executors.precision.retyped import ATTENTIONS, CONTRACTIONS, lowerable, retyped
from torchrlopt.executors.precision.rungs import has_bfloat16
from torchrlopt.executors.registry import Lowered
from torchrlopt.executors.weights.static_part import static_inputs
from torchrlopt.judge import right
from torchrlopt.judge.budget import METRICS, Budget
from torchrlopt.judge.float64 import float64_reference
from torchrlopt.options import Options, PrecisionOptions
from torchrlopt.precision.assignment import Assignment, Choice
from torchrlopt.precision.sensitivity import sensitivities
from torchrlopt.precision.times import measured_times
from torchrlopt.report import PrecisionRecord, Rung
from torchrlopt.torch_private.modes import without_dispatch_modes
from torchrlopt.torch_private.operators import schema_of

logger = logging.getLogger("torchrlopt")

_DIRECTIONS = 2
"""Reverse passes: two estimate the error of a rounding to within 4 to 13 % (resnet18, vit_s16)."""

_MARGIN = 0.9
"""Part of the budget that a choice may use by prediction: predictions are 10 % too low at times, and other
inputs have other errors."""

_MOST_TRIES = 3

_CURVE = (0.1, 0.3, 3.0, 10.0)
"""Budgets shown beside the user's, as multiples of it."""


@dataclasses.dataclass(frozen=True)
class WithinBudget:
    """A graph that computes partly in bfloat16.

    Attributes:
        run: the graph; None if nothing was lowered.
        budget: that it keeps; None if the user's could not be determined.
        record: for the report.
        narrow: see `compiled.Lower`.
    """

    run: Lowered | None
    budget: Budget | None
    record: PrecisionRecord
    narrow: Callable[[float], Lowered | None] | None = None


def within_budget(
    contestant: Contestant, model: onnx_ir.Model, exact: Lowered, options: Options
) -> WithinBudget:
    """Lower what the budget allows.

    Args:
        contestant: the graph.
        model: the rewritten graph as ONNX.
        exact: the same, built in float32.
        options: the user's, with a budget.
    """
    given = options.precision.max_error
    record = PrecisionRecord(given if isinstance(given, float) else 0.0, _name_of(options.precision))

    def refused(reason: str) -> WithinBudget:
        return WithinBudget(None, None, dataclasses.replace(record, reason=reason))

    device = contestant.subject.device
    if options.executor != BASELINE or not isinstance(exact, EagerCallable):
        return refused(f"{options.executor} computes in the types of the model")
    if not has_bfloat16(device):
        return refused("this processor has no bfloat16 units")
    this = _Lowering(contestant, model, exact, options)
    if not any(each.target in CONTRACTIONS for each in this.calls):
        return refused("no product or convolution can be computed in bfloat16")
    try:
        with torch.no_grad():
            reference = float64_reference(this.aten, this.inputs)
        # Everything in bfloat16 bounds what can be gained, and its kernels give the times.
        whole = this.built([each.name for each in this.calls])
        budget = _budget(options.precision, math.inf)
        of_all = budget.error(this.outputs(whole), reference)
        own = budget.error(this.outputs(exact), reference)
        limit = record.max_error if isinstance(given, float) else of_all
        record = dataclasses.replace(record, max_error=limit, error_of_all=of_all, num_calls=len(this.calls))
        if limit < own:
            return refused(f"float32 itself has an error of {own:.2e}")
        budget = dataclasses.replace(budget, max_error=limit)
        return this.fitted(whole, reference, budget, record)
    except RlOptError as error:
        return refused(str(error))


def lowered_as(
    module: fx.GraphModule, static: Collection[str], options: Options, records: Sequence[PrecisionRecord]
) -> tuple[fx.GraphModule, Budget | None]:
    """Return a lowered graph with the calls in bfloat16 that an earlier compilation chose, and the budget.

    The graph itself, and no budget, if nothing was lowered or the choice was for another graph.

    Args:
        module: the lowered graph.
        static: names of the placeholders that are the same in every call.
        options: the user's.
        records: of the earlier compilation, see `Report.precision`.
    """
    known = {_place(at, each): each.name for at, each in enumerate(lowerable(module.graph, static))}
    for record in records:
        fits = record.num_calls == len(known) and known.keys() >= set(record.lowered)
        if record.error is not None and fits:
            names = [known[place] for place in record.lowered]
            return retyped(module, names), _budget(options.precision, record.max_error)
    return module, None


def _place(at: int, call: fx.Node) -> str:
    """A call by its position among those that may be lowered: names depend on how a graph was traced."""
    return f"{at} {_operator(call)}"


def _operator(call: fx.Node) -> str:
    return "attention" if call.target in ATTENTIONS else schema_of(call.target).name.rpartition("::")[2]


def _budget(options: PrecisionOptions, limit: float) -> Budget:
    metric = options.error_metric
    return Budget(limit, METRICS[metric] if isinstance(metric, str) else metric, _name_of(options))


def _name_of(options: PrecisionOptions) -> str:
    metric = options.error_metric
    return metric if isinstance(metric, str) else str(getattr(metric, "__name__", "a function"))


class _Lowering:
    """The graph that is lowered, and what is known of it."""

    def __init__(
        self, contestant: Contestant, model: onnx_ir.Model, exact: EagerCallable, options: Options
    ) -> None:
        captured = contestant.job.captured
        self.aten, self.inputs = contestant.job.traced.aten, contestant.inputs()
        self._exact, self._options = exact, options
        self._static = static_inputs(captured, options.lowering)
        with without_dispatch_modes():
            self._module = lower_captured(model, captured)
        self.calls = lowerable(self._module.graph, self._static)

    def built(self, lowered: Collection[str]) -> EagerCallable:
        """Build the graph with these calls in bfloat16."""
        with without_dispatch_modes():
            return assemble(retyped(self._module, lowered), self._static, self._options.lowering)

    def outputs(self, run: Lowered) -> tuple[Any, ...]:
        """Run on the user's inputs."""
        return right.run(run, self.inputs, "lower precision")

    def fitted(
        self, whole: EagerCallable, reference: Sequence[Any], budget: Budget, record: PrecisionRecord
    ) -> WithinBudget:
        """Find a choice that keeps the budget; at most `_MOST_TRIES` are built."""
        seed = self._options.search.seed
        with without_dispatch_modes():
            found = sensitivities(self._module, self.inputs, self._static, self.calls, _DIRECTIONS, seed)
        times = measured_times(self.calls, self._exact, whole, self.inputs)
        assignment = Assignment(self.calls, found, times)
        target, reason = budget.max_error * _MARGIN, ""
        # The metric may be another one than the root mean square that is predicted.
        scale = record.error_of_all / assignment.of_all().error if record.error_of_all else 1.0
        if budget.name != "rms":
            target /= max(scale, 1e-12)
        curve = tuple(_rung(assignment.within(target * factor)) for factor in _CURVE)
        record = dataclasses.replace(record, curve=curve)
        for _ in range(_MOST_TRIES):
            choice = assignment.within(target)
            if not choice.lowered:
                reason = "nothing that saves time fits into the budget"
                break
            run = self.built(choice.lowered)
            error = budget.error(self.outputs(run), reference)
            logger.debug("%d calls in bfloat16: error %.3g", len(choice.lowered), error)
            if error <= budget.max_error:
                calls = enumerate(self.calls)
                lowered = tuple(_place(at, each) for at, each in calls if each.name in choice.lowered)
                counts = _counts(self.calls, choice.lowered)
                record = dataclasses.replace(record, error=error, lowered=lowered, operators=counts)
                narrow = _Narrow(self, assignment, budget, choice.error)
                return WithinBudget(run, budget, record, narrow)
            reason = f"the error was {error:.3g} where {choice.error:.3g} was predicted"
            target *= _MARGIN * budget.max_error / error
        return WithinBudget(None, None, dataclasses.replace(record, reason=reason))


class _Narrow:
    """Builds a graph again with fewer calls in bfloat16.

    Args:
        this: the graph.
        assignment: what may be chosen.
        budget: of the error.
        predicted: error of the present choice.
    """

    def __init__(self, this: _Lowering, assignment: Assignment, budget: Budget, predicted: float) -> None:
        self._this, self._assignment, self._budget, self._predicted = this, assignment, budget, predicted

    def __call__(self, error: float) -> Lowered | None:
        """Build the choice that is predicted to keep the budget where the present one had this error."""
        choice = self._assignment.within(self._predicted * _MARGIN * self._budget.max_error / error)
        self._predicted = choice.error
        return self._this.built(choice.lowered) if choice.lowered else None


def _rung(choice: Choice) -> Rung:
    return Rung(choice.error, choice.us, len(choice.lowered))


def _counts(calls: Sequence[fx.Node], lowered: Collection[str]) -> Mapping[str, tuple[int, int]]:
    """How many contractions of each operator are lowered, of how many."""
    names = [(_operator(each), each.name in lowered) for each in calls if each.target in CONTRACTIONS]
    totals = collections.Counter(name for name, _ in names)
    low = collections.Counter(name for name, is_low in names if is_low)
    return {name: (low[name], total) for name, total in totals.items()}
