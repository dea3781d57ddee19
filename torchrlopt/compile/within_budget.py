"""Lowers a rewritten graph to bfloat16 call by call, within the user's error budget.

sensitivities -> times -> choice -> build -> measured error; if that misses the budget, the choice is made
again for a smaller one.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import math
from collections.abc import Callable, Collection, Sequence

import onnx_ir
import torch
from torch import fx

from torchrlopt import _C, report
from torchrlopt.compile.contestant import Contestant
from torchrlopt.errors import RlOptError, UnsupportedError
from torchrlopt.executor_table import BASELINE
from torchrlopt.executors import registry
from torchrlopt.executors.eager.executor import EagerCallable, assemble
from torchrlopt.executors.lowering.onnx_to_aten import lower_captured
from torchrlopt.executors.precision.retyped import ATTENTIONS, CONTRACTIONS, lowerable, retyped
from torchrlopt.executors.precision.rungs import bfloat16_speedup, has_bfloat16
from torchrlopt.executors.registry import Lowered
from torchrlopt.executors.weights.static_part import static_inputs
from torchrlopt.judge import right
from torchrlopt.judge.budget import METRICS, Budget
from torchrlopt.judge.float64 import float64_reference
from torchrlopt.machine.cost.model import COST_CLASSES
from torchrlopt.options import Options, PrecisionOptions
from torchrlopt.plan.planning import profile_for
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

_OPENVINO, _HINT = "openvino", "INFERENCE_PRECISION_HINT"

_WORTH_SUGGESTING = 1.3
"""Predicted gain for which the report says how to ask for lower precision."""

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
    contestant: Contestant, write: Callable[[], onnx_ir.Model], exact: Lowered, options: Options
) -> WithinBudget:
    """Lower what the budget allows.

    Args:
        contestant: the graph.
        write: writes the rewritten graph as ONNX.
        exact: the same, built in float32.
        options: the user's, with a budget.
    """
    record = PrecisionRecord(0.0, _name_of(options.precision))
    given = options.precision.max_error
    if isinstance(given, float):
        record = dataclasses.replace(record, max_error=given)
    try:
        if not has_bfloat16(contestant.subject.device):
            raise UnsupportedError("this processor has no bfloat16 units")
        if options.executor == _OPENVINO:
            return _in_openvino(contestant, write, exact, options, record)
        if options.executor == BASELINE and isinstance(exact, EagerCallable):
            return _by_calls(contestant, write, exact, options, record)
        raise UnsupportedError(f"{options.executor} computes in the types of the model")
    except RlOptError as error:
        return WithinBudget(None, None, dataclasses.replace(record, reason=str(error)))


def _by_calls(
    contestant: Contestant,
    write: Callable[[], onnx_ir.Model],
    exact: EagerCallable,
    options: Options,
    record: PrecisionRecord,
) -> WithinBudget:
    this = _Lowering(contestant, write(), exact, options)
    if not any(each.target in CONTRACTIONS for each in this.calls):
        raise UnsupportedError("no product or convolution can be computed in bfloat16")
    # Everything in bfloat16 bounds what can be gained, and its kernels give the times.
    whole = this.built([each.name for each in this.calls])
    measured = _Measured(contestant, options, record, exact, whole)
    return this.fitted(whole, measured, dataclasses.replace(measured.record, num_calls=len(this.calls)))


def _in_openvino(
    contestant: Contestant,
    write: Callable[[], onnx_ir.Model],
    exact: Lowered,
    options: Options,
    record: PrecisionRecord,
) -> WithinBudget:
    """Everything or nothing: its plugin chooses the type of each operator, by a hint for the whole graph."""
    given = options.lowering.executor_options or {}
    if _HINT in given:
        raise UnsupportedError(f"executor_options sets {_HINT}", got=given[_HINT])
    lowering = dataclasses.replace(options.lowering, executor_options={**given, _HINT: "bf16"})
    run = registry.get(_OPENVINO).lower(write(), contestant.job.captured, lowering)
    measured = _Measured(contestant, options, record, exact, run)
    error = measured.budget.check(measured.of_whole, measured.reference, "everything in bfloat16")
    record = dataclasses.replace(measured.record, error=error, lowered=("everything",), num_calls=1)
    return WithinBudget(run, measured.budget, record)


class _Measured:
    """Errors of a graph in float32 and in bfloat16, and the budget that they leave.

    Raises:
        UnsupportedError: the budget is below the error of float32, or the errors cannot be measured.
        RlOptError: one of them does not run.

    Attributes:
        reference: outputs in float64.
        of_whole: outputs with everything in bfloat16.
        budget: the user's.
        record: with the errors.
    """

    def __init__(
        self,
        contestant: Contestant,
        options: Options,
        record: PrecisionRecord,
        exact: Lowered,
        whole: Lowered,
    ) -> None:
        inputs, given = contestant.inputs(), options.precision.max_error
        with torch.no_grad():
            self.reference = float64_reference(contestant.job.traced.aten, inputs)
        self.of_whole = right.run(whole, inputs, "everything in bfloat16")
        budget = _budget(options.precision, math.inf)
        own = budget.error(right.run(exact, inputs), self.reference)
        of_all = budget.error(self.of_whole, self.reference)
        limit = given if isinstance(given, float) else of_all
        if limit < own:
            raise UnsupportedError(f"float32 itself has an error of {own:.2e}")
        self.budget = dataclasses.replace(budget, max_error=limit)
        self.record = dataclasses.replace(record, max_error=limit, error_of_all=of_all)


def suggestion(graph: _C.Graph, contestant: Contestant, options: Options) -> str | None:
    """Return how to ask for lower precision, where it would gain much; None elsewhere.

    Args:
        graph: the rewritten graph.
        contestant: what it was rewritten from.
        options: the user's, without a budget.
    """
    device = contestant.subject.device
    factor = bfloat16_speedup(device)
    if factor <= 1 or options.lowering.numerics == "strict" or device.type != "cpu":
        return None
    cost = profile_for(options, device).cost_model(contestant.subject.sizes)
    total = low = 0.0
    for at in graph.topological_order():
        node, us = graph.node(at), float(cost.node(graph, at)["time_us"])
        total += us
        is_contraction = COST_CLASSES.get(str(node["op"])) in ("Contraction", "Attention")
        low += us if is_contraction and node["types"][0][0] == "f32" else 0.0
    gain = total / (total - low + low / factor) if total else 1.0
    if gain < _WORTH_SUGGESTING:
        return None
    return f"bfloat16 is predicted {gain:.1f}x faster: max_error=1e-2 uses it as far as the error allows"


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
        self.inputs = contestant.inputs()
        self._exact, self._options = exact, options
        self._static = static_inputs(captured, options.lowering)
        with without_dispatch_modes():
            self._module = lower_captured(model, captured)
        self.calls = lowerable(self._module.graph, self._static)

    def built(self, lowered: Collection[str]) -> EagerCallable:
        """Build the graph with these calls in bfloat16."""
        with without_dispatch_modes():
            return assemble(retyped(self._module, lowered), self._static, self._options.lowering)

    def fitted(self, whole: EagerCallable, measured: _Measured, record: PrecisionRecord) -> WithinBudget:
        """Find a choice that keeps the budget; at most `_MOST_TRIES` are built."""
        budget = measured.budget
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
            run = whole if len(choice.lowered) == len(self.calls) else self.built(choice.lowered)
            error = budget.error(right.run(run, self.inputs, "lower precision"), measured.reference)
            logger.debug("%d calls in bfloat16: error %.3g", len(choice.lowered), error)
            if error <= budget.max_error:
                calls = enumerate(self.calls)
                lowered = tuple(_place(at, each) for at, each in calls if each.name in choice.lowered)
                groups = _groups(self.calls, assignment, choice)
                record = dataclasses.replace(record, error=error, lowered=lowered, operators=groups)
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


def _groups(calls: Sequence[fx.Node], assignment: Assignment, choice: Choice) -> tuple[report.Lowered, ...]:
    """What lower precision did to each operator that takes time."""
    parts: dict[str, list[tuple[bool, float, float]]] = collections.defaultdict(list)
    for call in calls:
        if call in assignment.items:
            is_low = call.name in choice.lowered
            parts[_operator(call)].append((is_low, *assignment.effect_of(call, choice.lowered)))
    found = [
        report.Lowered(
            operator,
            sum(is_low for is_low, _, _ in each),
            len(each),
            sum(saved for is_low, saved, _ in each if is_low),
            math.sqrt(sum(error for _, _, error in each)),
        )
        for operator, each in parts.items()
    ]
    return tuple(sorted(found, key=lambda each: -each.saved_us))
