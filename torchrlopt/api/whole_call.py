"""Is a call faster as a whole? The graph alone was timed without the guards and wrappers around it.

Those take some 10 to 100 microseconds of every call, which a small model may not win back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.utils._pytree import tree_leaves

from torchrlopt.compile.timing import measure
from torchrlopt.executors import registry
from torchrlopt.options import Options
from torchrlopt.report import Report, Timing

_LARGE_MS, _LONG_MS = 1.0, 50.0
"""What is around a graph does not matter where it saves, or where the original takes, more than that."""


def is_doubtful(report: Report) -> bool:
    """Whether the graph saves so little of a short call that the whole call decides."""
    before_ms, after_ms = report.measured_before_ms, report.measured_after_ms
    if before_ms is None or after_ms is None or before_ms > _LONG_MS:
        return False
    return report.kept == "original" or before_ms - after_ms < _LARGE_MS


def is_decided_by_graphs(reports: Iterable[Report]) -> bool:
    """Whether graphs save so much, or take so long, that what is around them does not matter."""
    before_ms = saved_ms = 0.0
    for report in reports:
        before_ms += report.measured_before_ms or 0.0
        if report.kept == "rewritten" and report.measured_before_ms and report.measured_after_ms:
            saved_ms += report.measured_before_ms - report.measured_after_ms
    return before_ms > _LONG_MS or saved_ms >= _LARGE_MS


def time_calls(
    original: Callable[..., Any],
    optimised: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    report: Report,
    options: Options,
) -> Timing:
    """Time whole calls in alternation.

    Args:
        original: the model.
        optimised: the same, compiled.
        args: of both.
        kwargs: of both.
        report: of the graph.
        options: limits of the timing.
    """
    runs_elsewhere = report.kept == "rewritten" and registry.row(report.executor).needs_settling
    return measure(
        lambda *_: original(*args, **kwargs),
        lambda *_: optimised(*args, **kwargs),
        lambda: tree_leaves((args, dict(kwargs))),  # says which device is waited for
        options.measure_ms,
        options.min_gain,
        settle=runs_elsewhere,
    )


def with_original(report: Report, timing: Timing, options: Options) -> Report:
    """The report where the original runs after all; a reason that it gave before stays."""
    if report.kept == "original":
        return report
    reason = (
        f"the whole call is not faster: {timing.before_ms:.3f} -> {timing.after_ms:.3f} ms, "
        f"gain {timing.gain:.3f}, min_gain {options.min_gain:g}"
    )
    return dataclasses.replace(report, kept="original", fallback_reason=reason)
