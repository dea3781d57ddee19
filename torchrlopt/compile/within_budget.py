"""Lowers the precision of a rewritten graph within the user's error budget, as far as the executor can.

Eager chooses call by call (`mixed_precision`), and its choice is stored; OpenVINO lowers all or nothing.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Sequence
from typing import Any

import torch

from torchrlopt import _C
from torchrlopt.compile.contestant import Contestant, written
from torchrlopt.compile.mixed_precision import ROOM, MixedPrecision, WithinBudget
from torchrlopt.errors import RlOptError, UnsupportedError
from torchrlopt.executor_table import BASELINE
from torchrlopt.executors import registry
from torchrlopt.executors.eager.executor import EagerCallable
from torchrlopt.executors.precision.retyped import CONTRACTIONS
from torchrlopt.executors.precision.rungs import has_bfloat16, has_int8
from torchrlopt.executors.registry import Lowered
from torchrlopt.judge import right
from torchrlopt.judge.budget import Budget
from torchrlopt.judge.float64 import float64_reference
from torchrlopt.options import Options, PrecisionOptions
from torchrlopt.plan.planning import plan_store
from torchrlopt.plan.store import make_key
from torchrlopt.report import PrecisionRecord
from torchrlopt.report.reading import instance_of

logger = logging.getLogger("torchrlopt")

_FORMAT = 1  # bump when the meaning of a stored choice changes

_OPENVINO, _HINT = "openvino", "INFERENCE_PRECISION_HINT"


def within_budget(
    contestant: Contestant,
    graph: _C.Graph,
    exact: Lowered,
    options: Options,
    planned_key: str | None,
) -> WithinBudget:
    """Lower what the budget allows.

    `planned_key` is that of the plan in the plan store; with None no choice is read or written there.
    """
    record = PrecisionRecord(0.0, Budget.of(options.precision, 0.0).name)
    given = options.precision.max_error
    if isinstance(given, float):
        record = dataclasses.replace(record, max_error=given)
    try:
        device = contestant.subject.device
        is_eager, has_low = options.executor == BASELINE, has_bfloat16(device)
        # Integers need other units; how exact bfloat16 would be is not known without its own.
        if not has_low and not (is_eager and isinstance(given, float) and has_int8(device)):
            raise UnsupportedError("this processor has no bfloat16 units")
        if options.executor == _OPENVINO:
            return _in_openvino(contestant, graph, exact, options, record)
        if is_eager and isinstance(exact, EagerCallable):
            key = _key_of(planned_key, options.precision)
            this = MixedPrecision(contestant, graph, exact, options, has_low)
            if not any(each.target in CONTRACTIONS for each in (this.calls if has_low else this.quantisable)):
                raise UnsupportedError("no product or convolution can be computed in lower precision")
            return _by_calls(this, contestant, exact, options, record, key)
        raise UnsupportedError(f"{options.executor} computes in the types of the model")
    except RlOptError as error:
        return WithinBudget(None, None, dataclasses.replace(record, reason=str(error)))


def _by_calls(
    this: MixedPrecision,
    contestant: Contestant,
    exact: EagerCallable,
    options: Options,
    record: PrecisionRecord,
    key: str | None,
) -> WithinBudget:
    stored, reference = _stored(key), _float64_of(contestant)
    if stored is not None:
        found = this.as_stored(stored, reference)
        if found is not None:
            return found
    whole = right.run(this.whole, this.inputs, "everything in lower precision")
    budget, record = _limited(options, record, right.run(exact, this.inputs), whole, reference)
    this.split_if_exact(budget, reference)
    found = this.fitted(budget, reference, dataclasses.replace(record, num_calls=len(this.calls)))
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
        return instance_of(PrecisionRecord, entry)
    except (TypeError, ValueError) as error:
        logger.debug("a stored choice does not fit: %s", error)
        return None


def _float64_of(contestant: Contestant) -> tuple[Any, ...]:
    """Return the outputs for the user's inputs in float64."""
    with torch.no_grad():
        return float64_reference(contestant.job.traced.aten, contestant.inputs())


def _in_openvino(
    contestant: Contestant,
    graph: _C.Graph,
    exact: Lowered,
    options: Options,
    record: PrecisionRecord,
) -> WithinBudget:
    """Everything or nothing: its plugin chooses the type of each operator, by a hint for the whole graph."""
    given = options.lowering.executor_options or {}
    if _HINT in given:
        raise UnsupportedError(f"executor_options sets {_HINT}", got=given[_HINT])
    lowering = dataclasses.replace(options.lowering, executor_options={**given, _HINT: "bf16"})
    model = written(graph, contestant.job)
    run = registry.get(_OPENVINO).lower(model, contestant.job.captured, lowering)
    inputs, reference = contestant.inputs(), _float64_of(contestant)
    whole = right.run(run, inputs, "everything in bfloat16")
    budget, record = _limited(options, record, right.run(exact, inputs), whole, reference)
    error = budget.check(whole, reference, "everything in bfloat16")
    record = dataclasses.replace(record, error=error, lowered=("everything",), num_calls=1)
    return WithinBudget(run, budget, record)


def _limited(
    options: Options,
    record: PrecisionRecord,
    exact: Sequence[Any],
    whole: Sequence[Any],
    reference: Sequence[Any],
) -> tuple[Budget, PrecisionRecord]:
    """Return the user's budget, and the record with it.

    Raises:
        UnsupportedError: the budget is below the error of float32, or the errors cannot be measured.
    """
    given, budget = options.precision.max_error, Budget.of(options.precision, math.inf)
    own, of_all = budget.error(exact, reference), budget.error(whole, reference)
    limit = given if isinstance(given, float) else ROOM * of_all
    if math.isinf(limit):
        raise UnsupportedError("everything in lower precision has an infinite error")
    if limit < own:
        raise UnsupportedError(f"float32 itself has an error of {own:.2e}")
    return (
        dataclasses.replace(budget, max_error=limit),
        dataclasses.replace(record, max_error=limit, error_of_all=of_all),
    )
