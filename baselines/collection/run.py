"""Runs one case: eager, compiled, and the comparison."""

from __future__ import annotations

import contextlib
import copy
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from baselines.collection.architecture import Arguments
from baselines.collection.leaves import assert_same
from baselines.collection.table import CASES, Case, arguments, build, caller, larger
from baselines.errors import one_line
from torchrlopt.compile import backend
from torchrlopt.compile.fallback import HIDDEN
from torchrlopt.report import Report

Status = Literal["equal", "wrong", "raised", "dynamo", "broken"]

#: Descriptions of all statuses but the first, for the summary.
MEANING: dict[Status, str] = {
    "equal": "same outputs as eager PyTorch",
    "wrong": "other outputs than eager PyTorch",
    "raised": "an exception",
    "dynamo": "torch.compile fails alike with PyTorch's own backend aot_eager",
    "broken": "the model does not run in eager PyTorch",
}

#: Batch sizes of the calls: the same size twice with other values, then another, which makes sizes symbolic.
BATCHES = (2, 2, 3)


@dataclass(frozen=True)
class Outcome:
    """Outcome of one case.

    Attributes:
        case: its label.
        family: kind of model.
        status: see `MEANING`.
        graphs: number of compiled graphs.
        rewritten: number of graphs that run rewritten.
        nodes_before: operators of all graphs.
        nodes_after: the same after rewriting, whether or not the rewritten graph is used.
        speedup: measured speed-up over all graphs of what runs; None if nothing was measured.
        first_call_s: seconds of the first compiled call.
        reasons: why the other graphs are unchanged, each with its count.
        hidden: distinct internal errors hidden by the fallback.
        sizes: number of text lengths or image sizes that it was called with; 1 if eager accepts no other.
        detail: of a failure, on one line.
        trace: full traceback of a failure.
    """

    case: str
    family: str
    status: Status
    graphs: int = 0
    rewritten: int = 0
    nodes_before: int = 0
    nodes_after: int = 0
    speedup: float | None = None
    first_call_s: float | None = None
    reasons: str = ""
    hidden: str = ""
    sizes: int = 1
    detail: str = ""
    trace: str = ""


@torch.no_grad()
def run(label: str, options: Mapping[str, Any], batches: Sequence[int] = BATCHES) -> Outcome:
    """Run one case.

    Args:
        label: one of `CASES`.
        options: of the backend.
        batches: batch size of each call. One more call has longer texts or larger images, if the model
            accepts them.
    """
    case = CASES[label]
    family = case.architecture.family
    calls = [arguments(case, batch, number) for number, batch in enumerate(batches)]
    try:
        expected = _outputs(case, calls)
    except Exception as error:  # noqa: BLE001  # a model's exception is its result: the other cases go on
        return Outcome(label, family, "broken", detail=one_line(error, 300), trace=traceback.format_exc())
    more = larger(calls[-1])
    with contextlib.suppress(Exception):  # the model may reject another size with any exception
        expected += _outputs(case, [more])
        calls.append(more)
    seconds: list[float] = []
    HIDDEN.clear()
    try:
        actual = _outputs(
            case, calls, lambda it: torch.compile(it, backend="rlopt", options=dict(options)), seconds
        )
        assert_same(expected, actual)
        status, detail, trace = "equal", "", ""
    except Exception as error:  # noqa: BLE001  # the same
        status = "wrong" if isinstance(error, AssertionError) and len(seconds) == len(calls) else "raised"
        detail, trace = one_line(error, 300), traceback.format_exc()
    reports = backend.reports()
    if status != "equal" and _fails_alike(case, calls, expected):
        status = "dynamo"
    outcome = _summed(label, family, status, reports, seconds, detail, trace)
    return replace(outcome, sizes=1 + len(calls) - len(batches))


def _outputs(
    case: Case,
    calls: Sequence[Arguments],
    wrap: Callable[[Any], Any] | None = None,
    seconds: list[float] | None = None,
) -> list[Any]:
    """The outputs of all calls of a fresh model; the seconds of each call are appended."""
    call = caller(case, build(case), wrap)
    outputs = []
    for given in calls:
        given = copy.deepcopy(given)  # some models modify their arguments
        start = time.perf_counter()
        outputs.append(copy.deepcopy(call(**given)))
        if seconds is not None:
            seconds.append(time.perf_counter() - start)
    return outputs


def _fails_alike(case: Case, calls: Sequence[Arguments], expected: Sequence[Any]) -> bool:
    """Whether the case also fails with a backend of PyTorch that changes nothing."""
    torch._dynamo.reset()
    try:
        assert_same(expected, _outputs(case, calls, lambda it: torch.compile(it, backend="aot_eager")))
    except Exception:  # noqa: BLE001  # the kind of failure does not matter
        return True
    return False


def _summed(
    label: str,
    family: str,
    status: Status,
    reports: Sequence[Report],
    seconds: Sequence[float],
    detail: str,
    trace: str,
) -> Outcome:
    before = after = 0.0
    for report in reports:
        if report.measured_before_ms and report.measured_after_ms:
            before += report.measured_before_ms
            is_used = report.kept == "rewritten"
            after += report.measured_after_ms if is_used else report.measured_before_ms
    reasons = Counter(cause(report) for report in reports if report.kept == "original")
    return Outcome(
        label,
        family,
        status,
        graphs=len(reports),
        rewritten=sum(report.kept == "rewritten" for report in reports),
        nodes_before=sum(report.num_nodes_before for report in reports),
        nodes_after=sum(report.num_nodes_after for report in reports),
        speedup=before / after if after else None,
        first_call_s=seconds[0] if seconds else None,
        hidden=" | ".join(dict.fromkeys(" ".join(text.split())[:300] for text in HIDDEN.texts)),
        reasons="; ".join(f"{count} x {reason}" for reason, count in reasons.most_common()),
        detail=detail,
        trace=trace,
    )


def cause(report: Report) -> str:
    """Why a graph is unchanged, without details that differ between graphs."""
    reason = report.fallback_reason or "nothing to rewrite"
    first = re.split(r"[:;(]", reason, maxsplit=1)[0].strip()
    return re.sub(r"\d+", "N", first)
