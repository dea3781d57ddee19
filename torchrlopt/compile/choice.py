"""Which executor runs a graph: the one that is named, the first that pays, or the fastest of several.

`executor="auto"` plans for each executor, times all of them on the user's inputs and keeps the fastest. Which
one won is remembered in the plan store, so that the next process builds that one only. `executor="default"`
does the same with runtimes that are foreseen to win clearly, and eager PyTorch last, each with its plan; no
further runtime is tried behind one that is far faster than the original. Where none is foreseen it is eager
PyTorch.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import logging
import math
import time
from collections import deque
from collections.abc import Sequence

import torch

from torchrlopt import executor_table
from torchrlopt.compile import fallback
from torchrlopt.compile.attempt import Attempt, Try
from torchrlopt.compile.contest import Contest, Duel, add_others, book_others, is_faster
from torchrlopt.compile.contestant import Contestant, subject_of
from torchrlopt.compile.fallback import recoverable_errors
from torchrlopt.compile.progress import progress
from torchrlopt.compile.timing import measure
from torchrlopt.executors import registry
from torchrlopt.machine import device
from torchrlopt.options import Options
from torchrlopt.plan import verdicts
from torchrlopt.plan.foreseen import foreseen, price_ratio
from torchrlopt.plan.planning import given_plan, plan_store, versions
from torchrlopt.plan.search import graph_hash
from torchrlopt.plan.store import make_key
from torchrlopt.report import Report
from torchrlopt.substitutions import load_library

logger = logging.getLogger("torchrlopt")

CHOICE_FORMAT = 3  # raised when the meaning of a stored choice changes

ENOUGH = 1.3
"""`executor="default"` tries no other runtime where one is so many times as fast as the original."""


def choose(attempt: Try, contestant: Contestant, options: Options, report: Report) -> Attempt:
    """The attempt that is used, with the executor that the options name or leave open.

    Args:
        attempt: makes one.
        contestant: what is attempted.
        options: the user's.
        report: what is known so far. Is filled where there is one executor to try, else copied.

    Raises:
        RlOptError: every executor failed.
    """
    where = contestant.job.traced.device
    if options.plan is not None and options.executor == "default":
        given = given_plan(graph_hash(contestant.job.program.graph), options.plan)
        name = str(given.get("executor"))
        # Steps hold in any executor, and the one that was chosen elsewhere may not be installed here.
        is_missing = name in executor_table.names() and name not in registry.available(where.type)
        options = dataclasses.replace(options, executor=executor_table.BASELINE if is_missing else name)
        report.executor = options.executor
    if options.executor not in ("auto", "default"):
        return attempt(options, report)
    subject = subject_of(contestant.job)
    single, enough = dataclasses.replace(options, measure_plans=1), math.inf
    if options.executor == "auto":
        variants = all_variants(single, where)
    else:
        runtimes = foreseen(subject.program.graph, subject.sizes, where.type) if _is_open(options) else ()
        if not runtimes:
            return first_that_pays(attempt, registry.defaults(where.type), options, report)
        enough = ENOUGH
        variants = [dataclasses.replace(single, executor=name) for name in runtimes]
        # A measured plan may be what makes eager pay where no searched one does.
        variants.append(dataclasses.replace(options, executor=executor_table.BASELINE))
    duel = functools.partial(
        measure, inputs=contestant.inputs, limit_ms=options.measure_ms, min_gain=0.0, settle=True
    )
    key = key_of(single, graph_hash(subject.program.graph), subject.content, where)
    ratio = functools.partial(price_ratio, subject.program.graph, subject.sizes)
    found = fastest(Contest(attempt, duel, single, report, enough, ratio), single, variants, key)
    is_searched = found.lowered is not None and found.report.searcher != "none"
    if options.measure_plans > 1 and is_searched and not found.report.measured_plans:
        return _with_measured_plans(attempt, duel, options, report, found)
    return found


def _is_open(options: Options) -> bool:
    """Whether the options leave it open that a graph runs in another runtime than PyTorch.

    What a runtime makes of it has not the same bits, and is fast with weights that it may fold; without
    timing nobody would see that it was foreseen wrongly.
    """
    asks_for_pytorch = options.release_weights or options.cuda_graphs or options.executor_options is not None
    is_bound = options.numerics == "strict" or options.weights == "live" or asks_for_pytorch
    asks_for_nothing = options.searcher == "none" or options.budget_ms == 0
    return options.measure and not is_bound and not asks_for_nothing


def _with_measured_plans(
    attempt: Try, duel: Duel, options: Options, report: Report, found: Attempt
) -> Attempt:
    """The attempt with the fastest plan for an executor that was found to be the fastest, or that one itself.

    Raises:
        RlOptError: the executor failed now, and the options ask for errors.
    """
    own, start = copy.deepcopy(report), time.perf_counter()
    own.executor, own.choices = found.report.executor, found.report.choices
    known_ms = sum(own.phases_ms.values())
    own.phases_ms["other attempts"] = sum(found.report.phases_ms.values()) - known_ms
    try:
        again = attempt(dataclasses.replace(options, executor=own.executor), own)
    except KeyboardInterrupt:
        logger.warning("rlopt was interrupted: the searched plan is kept")
        return found
    except recoverable_errors(options) as error:
        fallback.log_traceback(error)
        logger.info("rlopt keeps the searched plan: %s", error)
        return found
    if again.lowered is None or not is_faster(again, found, duel):
        found.report.measured_plans = own.measured_plans
        add_others(found.report, (time.perf_counter() - start) * 1e3)
        if found.save is not None:
            found.save()
        return found
    return again


def first_that_pays(attempt: Try, names: Sequence[str], options: Options, report: Report) -> Attempt:
    """Try executors in order until one takes the graph and runs it faster than the original.

    Args:
        attempt: makes an attempt.
        names: of the executors.
        options: the user's; their executor does not count.
        report: what is known so far; is filled by the last attempt.

    Returns:
        The first attempt that pays; where none does, the first that could be made.

    Raises:
        RlOptError: every executor failed; this is the last one's reason.
    """
    start, known_ms = time.perf_counter(), sum(report.phases_ms.values())
    kept: Attempt | None = None
    for number, name in enumerate(names):
        is_last = name == names[-1]
        own = report if is_last and kept is None else copy.deepcopy(report)
        own.executor = name
        try:
            found = attempt(dataclasses.replace(options, executor=name), own)
        except recoverable_errors(options) as error:
            if is_last and kept is None:
                raise
            logger.info("rlopt goes on without %s: %s", name, error)
            fallback.log_traceback(error)
            continue
        if found.lowered is not None:
            if number > 0:
                book_others(found.report, start, known_ms)
            return found
        logger.info("rlopt goes on without %s: %s", name, found.report.fallback_reason)
        kept = kept or found
    assert kept is not None, "the last executor was tried, or raised"
    if len(names) > 1:
        book_others(kept.report, start, known_ms)
    return kept


def fastest(contest: Contest, options: Options, variants: Sequence[Options], key: str) -> Attempt:
    """Try several executors and keep the fastest.

    Args:
        contest: which they enter.
        options: the user's.
        variants: what is tried, in order: the options with an executor by name each.
        key: under which the choice is remembered in the plan store.

    Returns:
        The fastest. One that keeps the original where nothing beats it. After Ctrl-C the fastest so far,
        where there is one that beats the original; it is not remembered.

    Raises:
        RlOptError: every executor failed; see `Contest.end`.
        KeyboardInterrupt: Ctrl-C, and nothing so far beats the original.
    """
    remembered, has_won = _remembered(key, options, variants)
    todo = deque(remembered or variants)
    is_whole = True
    with progress("rlopt tries executors", len(todo)) as tell:
        try:
            while todo:
                variant = todo.popleft()
                tell(f"{variant.executor}, {variant.searcher}")
                if not contest.enter(variant):
                    continue
                if todo or len(contest.choices) > 1:
                    gc.collect()  # the graph that has lost lies in cycles, with its packed weights
                if has_won and contest.best is None:  # what won once does not any more
                    todo, remembered = deque(each for each in variants if each not in remembered), []
                    has_won = False
        except KeyboardInterrupt:
            if contest.best is None:
                raise
            is_whole = False
            contest.interrupt((variant, *todo))
    found = contest.end()
    if options.cache and not remembered and is_whole and contest.has_times:
        _remember(key, found)
    return found


def all_variants(options: Options, where: torch.device) -> list[Options]:
    """What `executor="auto"` tries: quick ones first, since what is out of time is left out.

    Args:
        options: the user's.
        where: the device of the graph's tensors.
    """
    variants = []
    for name in registry.available(where.type):
        planned = dataclasses.replace(options, executor=name)
        variants.append(planned)
        # The original graph may suit another executor better than any plan for it.
        if name != executor_table.BASELINE and options.searcher != "none":
            variants.append(planned.with_searcher("none"))
    return variants


def key_of(options: Options, graph: str, content: str, where: torch.device) -> str:
    """Under which a choice is remembered.

    Args:
        options: the user's.
        graph: hash of the graph before any plan.
        content: see `Subject`.
        where: the device of the graph's tensors.
    """
    return make_key(
        {
            "format": CHOICE_FORMAT,
            "graph": {"graph": graph, "content": content},
            "library": load_library(with_generated=options.generated).hash,
            "options": options.search_key(),
            "device": device.fingerprint(where),
            "executors": versions(registry.available(where.type)),
        }
    )


def _remember(key: str, found: Attempt) -> None:
    """Which one won; where the original did, the one that is told of, so that only that is tried again."""
    chosen = found.report
    noise = {"spread": chosen.measured_spread or 0.0, "is_calm": chosen.measured_is_calm}
    winner = {"executor": chosen.executor, "searcher": chosen.searcher, "taken_at": time.time()}
    plan_store().put(key, winner | noise | {"has_won": found.lowered is not None})


def _remembered(key: str, options: Options, variants: Sequence[Options]) -> tuple[list[Options], bool]:
    """The variant that an earlier process remembered, where that still holds, and whether it won."""
    entry = plan_store().get(key) if options.cache else None
    if entry is None or not verdicts.holds(entry.get("taken_at"), entry.get("spread"), entry.get("is_calm")):
        return [], False
    won = [entry.get("executor"), entry.get("searcher")]
    found = [each for each in variants if [each.executor, each.searcher] == won]
    return found, bool(found) and entry.get("has_won") is not False
