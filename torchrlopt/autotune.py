"""`executor="auto"`: a plan for each executor, all of them timed on the user's inputs, the fastest kept.

Which one won is remembered in the plan store, so that the next process builds that one only.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable
from typing import Any, cast

import torch

from torchrlopt import device, executors
from torchrlopt.errors import RlOptError
from torchrlopt.executors import Lowered
from torchrlopt.options import Options
from torchrlopt.planning import plan_store
from torchrlopt.report import Choice, Report
from torchrlopt.store import make_key
from torchrlopt.substitutions import load_library

CHOICE_FORMAT = 1  # raised when the meaning of a stored choice changes

Attempt = Callable[[Options, Report], Lowered | None]
"""Builds the graph with the plan and executor that the options name; None where the original is faster."""


def fastest(
    attempt: Attempt, options: Options, report: Report, graph_hash: str, where: torch.device
) -> tuple[Lowered | None, Report]:
    """Try every executor and keep the fastest.

    Args:
        attempt: builds, checks and times one of them.
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
        }
    )
    variants = _remembered(key, options) or _all_variants(options, where)
    start = time.perf_counter()
    choices: list[Choice] = []
    best: tuple[float, Lowered | None, Report] | None = None
    errors: list[RlOptError | MemoryError] = []
    for variant in variants:
        if choices and time.perf_counter() - start > options.autotune_s:
            choices.append(Choice(variant.executor, variant.searcher, None, 0.0, "the time was over"))
            continue
        own = copy.deepcopy(report)
        own.executor, own.searcher = variant.executor, variant.searcher
        begin = time.perf_counter()
        try:
            lowered = attempt(variant, own)
        except (RlOptError, MemoryError) as error:
            errors.append(error)
            lowered, own.fallback_reason = None, str(error) or type(error).__name__
        seconds = time.perf_counter() - begin
        ratio = _ratio(own)
        choices.append(Choice(variant.executor, variant.searcher, ratio, seconds, own.fallback_reason))
        rank = ratio if lowered is not None and ratio is not None else float("inf")
        if best is None or rank < best[0]:
            best = rank, lowered, own
    assert best is not None, "eager PyTorch is always there to try"
    _, lowered, chosen = best
    if lowered is None and len(errors) == len(choices):
        raise errors[0]
    chosen.choices = tuple(choices)
    if options.cache and lowered is not None:
        plan_store().put(key, {"executor": chosen.executor, "searcher": chosen.searcher})
    return lowered, chosen


def _all_variants(options: Options, where: torch.device) -> list[Options]:
    """Quick ones first: what is out of time is left out."""
    variants = []
    for name in executors.available(where.type):
        planned = dataclasses.replace(options, executor=cast(Any, name))
        variants.append(planned)
        if name != "eager":  # the original graph may suit an executor better than any plan for it
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
