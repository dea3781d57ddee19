"""`executor="auto"`: a plan for each executor, all of them timed on the user's inputs, the fastest kept.

Which one won is remembered in the plan store, so that the next process builds that one only.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import time
from collections.abc import Callable
from typing import Any, cast

import torch

from torchrlopt.errors import RlOptError
from torchrlopt.executors import registry
from torchrlopt.executors.registry import Lowered
from torchrlopt.machine import device
from torchrlopt.options import Options
from torchrlopt.plan.planning import plan_store
from torchrlopt.plan.store import make_key
from torchrlopt.report import Choice, Report, Timing
from torchrlopt.substitutions import load_library

CHOICE_FORMAT = 1  # raised when the meaning of a stored choice changes

Attempt = Callable[[Options, Report], Lowered | None]
"""Builds the graph with the plan and executor that the options name; None where the original is faster."""

Duel = Callable[[Lowered, Lowered], Timing]
"""Times two graphs in alternation."""

_NEAR = 1.35
"""Two graphs duel where their times, each taken beside the original's, differ by less than this factor."""

_HOPELESS = 2.0
"""An executor whose planned graph takes so many times as long as the best is not tried without the plan."""


def fastest(
    attempt: Attempt, duel: Duel, options: Options, report: Report, graph_hash: str, where: torch.device
) -> tuple[Lowered | None, Report]:
    """Try every executor and keep the fastest.

    Args:
        attempt: builds, checks and times one of them.
        duel: decides between two that are about as fast.
        options: the user's, with `executor="auto"`.
        report: what is known so far; not changed.
        graph_hash: of the graph before any plan.
        where: the device of the graph's tensors.

    Returns:
        The fastest graph with its report. None with the report of an attempt where nothing beats the
        original.
    """
    key = make_key(
        {
            "format": CHOICE_FORMAT,
            "graph": graph_hash,
            "library": load_library(with_generated=options.generated).hash,
            "options": options.search_key(),
            "device": device.fingerprint(where),
            "executors": registry.available(where.type),
        }
    )
    variants = _remembered(key, options) or _all_variants(options, where)
    start = time.perf_counter()
    choices: list[Choice] = []
    best: tuple[Lowered, Report] | None = None
    first: Report | None = None
    failures = 0
    reason: RlOptError | MemoryError | None = None
    for variant in variants:
        if choices and time.perf_counter() - start > options.autotune_s:
            choices.append(Choice(variant.executor, variant.searcher, None, 0.0, "the time was over"))
            continue
        if best is not None and _is_hopeless(variant, choices[-1], best[1]):
            choices.append(Choice(variant.executor, variant.searcher, None, 0.0, "with a plan far slower"))
            continue
        own = copy.deepcopy(report)
        own.executor, own.searcher = variant.executor, variant.searcher
        begin = time.perf_counter()
        try:
            lowered = attempt(variant, own)
        except (RlOptError, MemoryError) as error:
            failures += 1
            reason = reason or error  # the others go: their tracebacks hold what had been built
            lowered, own.fallback_reason = None, str(error) or type(error).__name__
        seconds = time.perf_counter() - begin
        choices.append(Choice(variant.executor, variant.searcher, _ratio(own), seconds, own.fallback_reason))
        first = first or own
        if lowered is not None and (best is None or _is_faster(lowered, own, best, duel)):
            best = lowered, own
        lowered = None
        if len(variants) > 1:
            gc.collect()  # the graph that has lost lies in cycles, with its packed weights
    assert first is not None, "eager PyTorch is always there to try"
    lowered, chosen = best or (None, first)
    if reason is not None and failures == len(choices):
        raise reason
    chosen.choices = tuple(choices)
    if options.cache and lowered is not None:
        plan_store().put(key, {"executor": chosen.executor, "searcher": chosen.searcher})
    return lowered, chosen


def _is_hopeless(variant: Options, last: Choice, best: Report) -> bool:
    """Whether leaving the plan out cannot be expected to make up for what the executor was slower with it."""
    ratio = _ratio(best)
    if variant.executor != last.executor or last.ratio is None or ratio is None:
        return False
    return last.ratio > _HOPELESS * ratio


def _is_faster(lowered: Lowered, report: Report, best: tuple[Lowered, Report], duel: Duel) -> bool:
    """Whether a graph is faster than the best one so far."""
    old, new = _ratio(best[1]), _ratio(report)
    if old is None or new is None or not 1 / _NEAR < new / old < _NEAR:
        return new is not None and (old is None or new < old)
    return duel(best[0], lowered).gain > 0


def _all_variants(options: Options, where: torch.device) -> list[Options]:
    """Quick ones first: what is out of time is left out."""
    variants = []
    for name in registry.available(where.type):
        planned = dataclasses.replace(options, executor=cast(Any, name))
        variants.append(planned)
        # The original graph may suit another executor better than any plan for it.
        if name != "eager" and options.searcher != "none":
            variants.append(planned.with_searcher("none"))
    return variants


def _remembered(key: str, options: Options) -> list[Options]:
    """The variant that won in an earlier process."""
    entry = plan_store().get(key) if options.cache else None
    if entry is None:
        return []
    try:
        remembered = options.with_searcher(entry["searcher"])
        return [dataclasses.replace(remembered, executor=entry["executor"])]
    except (KeyError, RlOptError):
        return []


def _ratio(report: Report) -> float | None:
    if report.measured_before_ms is None or report.measured_after_ms is None:
        return None
    return report.measured_after_ms / report.measured_before_ms
