"""Decides whether a call is faster as a whole: the graph alone was timed without its guards and wrappers.

Those take some 10 to 100 microseconds of every call, which a small model may not win back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torchrlopt.executors import registry
from torchrlopt.judge.faster import Verdict, against
from torchrlopt.judge.policy import Policy
from torchrlopt.report import Report, Timing
from torchrlopt.torch_private.pytree import tree_leaves


def is_decided_by_graphs(reports: Iterable[Report], policy: Policy) -> bool:
    """Whether graphs save so much, or take so long, that guards and wrappers do not matter."""
    before_ms = saved_ms = 0.0
    for report in reports:
        before_ms += report.measured_before_ms or 0.0
        if report.kept == "rewritten" and report.measured_before_ms and report.measured_after_ms:
            saved_ms += report.measured_before_ms - report.measured_after_ms
    return policy.is_decided_without_guards(before_ms, saved_ms)


def time_calls(
    original: Callable[..., Any],
    optimised: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    report: Report,
    policy: Policy,
) -> Verdict:
    """Time whole calls alternately.

    Args:
        original: the model.
        optimised: the same, compiled.
        args: of both.
        kwargs: of both.
        report: of the graph.
        policy: limits of the timing.
    """
    runs_elsewhere = report.kept == "rewritten" and registry.row(report.executor).needs_settling
    return against(
        lambda *_: original(*args, **kwargs),
        lambda *_: optimised(*args, **kwargs),
        lambda: tree_leaves((args, dict(kwargs))),  # determines which device to synchronise with
        policy,
        settle=runs_elsewhere,
    )


def with_original(report: Report, timing: Timing, policy: Policy) -> Report:
    """Return the report for a return to the original; an earlier reason stays."""
    if report.kept == "original":
        return report
    how, numbers = policy.shortfall(timing)
    reason = f"the whole call is {how}: {timing.before_ms:.3f} -> {timing.after_ms:.3f} ms, {numbers}"
    # Only calls of this kind run the original: other users of the compiled graph keep their status.
    return dataclasses.replace(
        report, status=dataclasses.replace(report.status, kept="original", fallback_reason=reason)
    )
