"""Lowers a rewritten graph to bfloat16 call by call, within the user's error budget.

sensitivities -> times -> choice -> build -> measured error; if that misses the budget or uses little of it,
the choice is made again.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import onnx_ir
import torch
from torch import fx

from torchrlopt import _C, report
from torchrlopt.compile.contestant import Contestant
from torchrlopt.errors import RlOptError, UnsupportedError
from torchrlopt.executor_table import BASELINE
from torchrlopt.executors import registry
from torchrlopt.executors.eager.executor import EagerCallable, assemble
from torchrlopt.executors.eager.kernels import int8
from torchrlopt.executors.lowering.onnx_to_aten import lower_captured
from torchrlopt.executors.precision.retyped import ATTENTIONS, CONTRACTIONS, lowerable, retyped
from torchrlopt.executors.precision.rungs import bfloat16_speedup, has_bfloat16
from torchrlopt.executors.registry import Lowered
from torchrlopt.executors.weights.static_part import static_inputs, static_nodes
from torchrlopt.judge import right
from torchrlopt.judge.budget import METRICS, Budget
from torchrlopt.judge.float64 import float64_reference
from torchrlopt.machine.cost.model import COST_CLASSES
from torchrlopt.options import Options, PrecisionOptions
from torchrlopt.plan.planning import plan_store, profile_for
from torchrlopt.plan.store import make_key
from torchrlopt.precision.assignment import Assignment, Choice
from torchrlopt.precision.sensitivity import sensitivities
from torchrlopt.precision.times import measured_times
from torchrlopt.precision.tries import MARGIN, tried
from torchrlopt.report import PrecisionRecord, Rung
from torchrlopt.torch_private.modes import without_dispatch_modes
from torchrlopt.torch_private.operators import schema_of

logger = logging.getLogger("torchrlopt")

_DIRECTIONS = 2
"""Reverse passes: two estimate the error of a rounding to within 4 to 13 % (resnet18, vit_s16)."""

_ROOM = 1.2
"""The budget "bfloat16" as a multiple of the error on the example inputs: other inputs have other errors."""

_MOST_CORRECTED = 1.5
"""Most that the error of everything in bfloat16 corrects predictions by: larger ones are no first order."""

_FORMAT = 1  # bump when the meaning of a stored choice changes

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
    narrow: Callable[[float], tuple[Lowered, PrecisionRecord] | None] | None = None


def within_budget(
    contestant: Contestant,
    write: Callable[[], onnx_ir.Model],
    exact: Lowered,
    options: Options,
    planned_key: str | None,
) -> WithinBudget:
    """Lower what the budget allows.

    Args:
        contestant: the graph.
        write: writes the rewritten graph as ONNX.
        exact: the same, built in float32.
        options: the user's, with a budget.
        planned_key: of the plan in the plan store; None to neither read nor write a choice there.
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
            key = _key_of(planned_key, options.precision)
            return _by_calls(contestant, write, exact, options, record, key)
        raise UnsupportedError(f"{options.executor} computes in the types of the model")
    except RlOptError as error:
        return WithinBudget(None, None, dataclasses.replace(record, reason=str(error)))


def _by_calls(
    contestant: Contestant,
    write: Callable[[], onnx_ir.Model],
    exact: EagerCallable,
    options: Options,
    record: PrecisionRecord,
    key: str | None,
) -> WithinBudget:
    this = _Lowering(contestant, write(), exact, options)
    if not any(each.target in CONTRACTIONS for each in this.calls):
        raise UnsupportedError("no product or convolution can be computed in bfloat16")
    stored = _stored(key)
    if stored is not None:
        found = this.as_stored(stored, float64_of(contestant))
        if found is not None:
            return found
    measured = _Measured(contestant, options, record, exact, this.whole)
    found = this.fitted(measured, dataclasses.replace(measured.record, num_calls=len(this.calls)))
    if key is not None and found.run is not None:
        plan_store().put(key, dataclasses.asdict(found.record))
    return found


def _key_of(planned_key: str | None, options: PrecisionOptions) -> str | None:
    """Key of a choice in the plan store; None if it is not stored: functions have no identity."""
    if planned_key is None or not isinstance(options.error_metric, str):
        return None
    return make_key(
        {"format": _FORMAT, "plan": planned_key, "budget": options.max_error, "metric": options.error_metric}
    )


def _stored(key: str | None) -> PrecisionRecord | None:
    """Return the choice of an earlier process; any mismatch counts as a miss."""
    entry = None if key is None else plan_store().get(key)
    if entry is None:
        return None
    try:
        return PrecisionRecord.from_dict(entry)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        logger.debug("a stored choice does not fit: %s", error)
        return None


def float64_of(contestant: Contestant) -> tuple[Any, ...]:
    """Return the outputs for the user's inputs in float64."""
    with torch.no_grad():
        return float64_reference(contestant.job.traced.aten, contestant.inputs())


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
        self.reference = float64_of(contestant)
        self.of_whole = right.run(whole, inputs, "everything in bfloat16")
        budget = _budget(options.precision, math.inf)
        own = budget.error(right.run(exact, inputs), self.reference)
        of_all = budget.error(self.of_whole, self.reference)
        limit = given if isinstance(given, float) else _ROOM * of_all
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
    for record in records:
        found = _names_in(lowerable(module.graph, static), record)
        if found is not None:
            return retyped(module, *found), _budget(options.precision, record.max_error)
    return module, None


def _names_in(calls: Sequence[fx.Node], record: PrecisionRecord) -> tuple[list[str], list[str]] | None:
    """Names of calls that an earlier compilation lowered, and quantised; None if it was of another graph."""
    known = {_place(at, each): each.name for at, each in enumerate(calls)}
    chosen = {*record.lowered, *record.quantised}
    if record.error is None or record.num_calls != len(known) or not known.keys() >= chosen:
        return None
    return [known[place] for place in record.lowered], [known[place] for place in record.quantised]


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
        fixed = static_nodes(self._module.graph, self._static)
        self._quantisable = [each for each in self.calls if int8.supports(each, fixed)]

    def built(self, lowered: Collection[str], quantised: Collection[str] = ()) -> EagerCallable:
        """Build the graph with these calls in bfloat16, or computed with 8-bit integers."""
        with without_dispatch_modes():
            module = retyped(self._module, lowered, quantised)
            return assemble(module, self._static, self._options.lowering)

    @functools.cached_property
    def whole(self) -> EagerCallable:
        """Everything in bfloat16: it bounds what can be gained, and its kernels give the times."""
        return self.built([each.name for each in self.calls])

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
                self._quantisable,
            )
        low, quantised = [each.name for each in self.calls], [each.name for each in self._quantisable]
        integers = self.built(low, quantised) if quantised else None
        times = measured_times(self.calls, self._exact, self.whole, integers, self._quantisable, self.inputs)
        return Assignment(self.calls, found, times)

    def as_stored(self, record: PrecisionRecord, reference: Sequence[Any]) -> WithinBudget | None:
        """Build a choice of an earlier process; None if it is of another graph or has too large an error."""
        names = _names_in(self.calls, record)
        if names is None:
            return None
        limit, of_all = self._options.precision.max_error, record.error_of_all
        if not isinstance(limit, float):  # it depends on inputs and weights, and those may be others
            of_all = _budget(self._options.precision, math.inf).error(
                right.run(self.whole, self.inputs, "everything in bfloat16"), reference
            )
            limit = _ROOM * of_all
        budget = _budget(self._options.precision, limit)
        run = self.built(*names)
        error = budget.error(right.run(run, self.inputs, "lower precision"), reference)
        if error > budget.max_error:
            return None
        record = dataclasses.replace(record, max_error=limit, error=error, error_of_all=of_all)
        return WithinBudget(run, budget, record, _Narrow(self, budget, reference, record, *names))

    def fitted(self, measured: _Measured, record: PrecisionRecord) -> WithinBudget:
        """Find a choice that keeps the budget; a few are built."""
        budget, assignment, of_all = measured.budget, self.assignment, self.assignment.of_all()
        kept: list[EagerCallable] = []  # the last that is within the budget

        def error_of(choice: Choice) -> float:
            run = self.whole if choice == of_all else self.built(choice.lowered, choice.quantised)
            error = budget.error(right.run(run, self.inputs, "lower precision"), measured.reference)
            if error <= budget.max_error:
                kept[:] = [run]
            return error

        target = _first_target(budget, record.error_of_all or 0.0, of_all.error)
        found = tried(assignment.within, error_of, budget.max_error, target)
        others = dict.fromkeys(assignment.within(MARGIN * budget.max_error * factor) for factor in _CURVE)
        record = dataclasses.replace(record, curve=tuple(_rung(each) for each in others if not each.is_exact))
        choice = found.choice
        if choice is None:
            return WithinBudget(None, None, dataclasses.replace(record, reason=found.reason))
        record = self.recorded(record, choice, found.error)
        narrow = _Narrow(self, budget, measured.reference, record, choice.lowered, choice.quantised)
        return WithinBudget(kept[0], budget, record, narrow)

    def recorded(self, record: PrecisionRecord, choice: Choice, error: float) -> PrecisionRecord:
        """Enter a choice and its measured error in a record."""
        return dataclasses.replace(
            record,
            error=error,
            lowered=_places(self.calls, choice.lowered),
            quantised=_places(self.calls, choice.quantised),
            operators=_groups(self.assignment, choice),
        )


def _first_target(budget: Budget, of_all: float, predicted: float) -> float:
    """The predicted error to begin with: root mean square, for whatever metric the budget is in.

    Args:
        budget: the user's.
        of_all: measured error of everything in bfloat16.
        predicted: the same as predicted.
    """
    if of_all == 0:
        return predicted
    scale = predicted / of_all
    if budget.name == "rms":
        scale = min(max(scale, 1 / _MOST_CORRECTED), _MOST_CORRECTED)
    target = MARGIN * budget.max_error * scale
    return max(target, predicted) if of_all <= budget.max_error else target


class _Narrow:
    """Builds a graph again with fewer calls in bfloat16.

    Args:
        this: the graph.
        budget: of the error.
        reference: outputs in float64.
        record: of the present choice.
        lowered, quantised: names of the calls that are, now.
    """

    def __init__(
        self,
        this: _Lowering,
        budget: Budget,
        reference: Sequence[Any],
        record: PrecisionRecord,
        lowered: Collection[str],
        quantised: Collection[str],
    ) -> None:
        self._this, self._budget, self._reference, self._record = this, budget, reference, record
        self._lowered, self._quantised = lowered, quantised

    def __call__(self, error: float) -> tuple[Lowered, PrecisionRecord] | None:
        """Build the choice that is predicted to keep the budget where the present one had this error."""
        assignment = self._this.assignment
        predicted = assignment.of(self._lowered, self._quantised).error
        choice = assignment.within(predicted * MARGIN * self._budget.max_error / error)
        self._lowered, self._quantised = choice.lowered, choice.quantised
        if choice.is_exact:
            return None
        run = self._this.built(choice.lowered, choice.quantised)
        own = self._budget.error(right.run(run, self._this.inputs, "lower precision"), self._reference)
        return run, self._this.recorded(self._record, choice, own)


def _rung(choice: Choice) -> Rung:
    return Rung(choice.error, choice.us, len(choice.lowered), len(choice.quantised))


def _places(calls: Sequence[fx.Node], names: Collection[str]) -> tuple[str, ...]:
    return tuple(_place(at, each) for at, each in enumerate(calls) if each.name in names)


def _groups(assignment: Assignment, choice: Choice) -> tuple[report.Lowered, ...]:
    """What lower precision did to each operator that takes time."""
    parts: dict[str, list[fx.Node]] = collections.defaultdict(list)
    for call in assignment.items:
        parts[_operator(call)].append(call)
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
