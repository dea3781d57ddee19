"""Which plan is the fastest on this machine: a few are built and timed, beside the one that was searched.

Prices decide which ones: the cheapest that differ by more than a timing could miss. Learned models of latency
foretold the winner no better (docs/training.md). The winner is what the rest of the attempt checks, times
against the original, and remembers.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import logging
from collections.abc import Iterator

from torchrlopt import _C
from torchrlopt.compile import fallback
from torchrlopt.compile.contestant import Contestant, lowered_from, subject_of
from torchrlopt.compile.progress import progress
from torchrlopt.compile.timing import measure
from torchrlopt.executors import registry
from torchrlopt.executors.registry import Lowered
from torchrlopt.machine.contention import own_time
from torchrlopt.machine.cost import MachineProfile
from torchrlopt.onnx.writer import write
from torchrlopt.options import Options
from torchrlopt.plan.alternatives import Alternative, alternatives, worth_measuring
from torchrlopt.plan.planning import Planned, Subject, profile_for, tell_plan
from torchrlopt.report import MeasuredPlan, Report, Timing
from torchrlopt.substitutions import load_library

logger = logging.getLogger("torchrlopt")

_POOL = 4
"""The plans that are measured are the cheapest of so many times as many."""

_POOL_S = 3.0
"""So long plans are made, in seconds in which there was a processor for it."""

_LEAST_GAIN = 0.02
"""One graph that is built twice may differ by as much: its weights lie elsewhere in memory."""


def is_contested(planned: Planned, options: Options) -> bool:
    """Whether plans are to be measured: not where the user has chosen one, or where that was done before."""
    is_free = options.plan is None and options.searcher != "none"
    return options.measure_plans > 1 and is_free and not planned.is_stored


def fastest_plan(contestant: Contestant, planned: Planned, options: Options, report: Report) -> Planned:
    """Measure plans beside the one that was searched, and keep the fastest.

    Args:
        contestant: the graph, and the inputs on which plans are timed.
        planned: the one that was searched.
        options: how many are measured (`measure_plans`, that one included), for how long each.
        report: is given what was measured, and the plan that won.

    Returns:
        The winner. After Ctrl-C the fastest so far.
    """
    subject = subject_of(contestant.job)
    profile = profile_for(options, subject.device)
    contest: _PlanContest | None = None
    try:
        rivals = _rivals(subject, planned, profile, options)
        if rivals:
            contest = _PlanContest(contestant, planned.graph, options)
            with progress("rlopt measures plans", len(rivals)) as tell:
                for rival in rivals:
                    tell(str(rival.belief))
                    contest.enter(rival)
    except KeyboardInterrupt:
        logger.warning("rlopt was interrupted: the fastest plan so far is kept")
        planned = dataclasses.replace(planned, key=None)  # the next process measures them all
    if contest is None:
        return planned
    report.measured_plans = tuple(contest.measured)
    if contest.best is None:
        return planned
    plan = dataclasses.replace(contest.best.plan, searcher=options.searcher, found_by="measurements")
    won = dataclasses.replace(planned, plan=plan, graph=contest.best.graph)
    tell_plan(subject, won, options, report)
    return won


def _rivals(
    subject: Subject, planned: Planned, profile: MachineProfile, options: Options
) -> list[Alternative]:
    graph, library = subject.program.graph, load_library(with_generated=options.generated)
    found = alternatives(graph, library, profile, subject.sizes, options, planned.plan)
    count = options.measure_plans - 1
    pool = itertools.islice(_within(found, _POOL_S), _POOL * count)
    return worth_measuring(pool, planned.graph, profile.cost_model(subject.sizes), count)


def _within(found: Iterator[Alternative], seconds: float) -> Iterator[Alternative]:
    start = own_time()
    return itertools.takewhile(lambda _: own_time() - start < seconds, found)


class _PlanContest:
    """Plans that are timed beside the fastest so far, one after the other.

    Attributes:
        best: the fastest so far; None while that is the one that was searched.
        measured: one for each that was built, in order.
    """

    def __init__(self, contestant: Contestant, searched: _C.Graph, options: Options) -> None:
        self.best: Alternative | None = None
        self.measured: list[MeasuredPlan] = []
        self._contestant, self._options = contestant, options
        self._searched = self._best_lowered = self._built(searched)
        self._measure = functools.partial(
            measure,
            inputs=contestant.inputs,
            limit_ms=options.measure_ms,
            min_gain=_LEAST_GAIN,
            settle=registry.row(options.executor).needs_settling,
        )

    def enter(self, rival: Alternative) -> None:
        """Build one, time it beside the fastest so far, and keep the faster of both.

        It is kept where it is plainly faster, and a second time beside the one that was searched: of many
        that are as fast as each other one is the fastest by accident.
        """
        try:
            lowered = self._built(rival.graph)
            found = self._measure(self._best_lowered, lowered)
            is_kept = _is_clearly_faster(found)
            is_kept = is_kept and _is_clearly_faster(self._measure(self._searched, lowered))
        except fallback.recoverable_errors(self._options) as error:
            fallback.log_traceback(error)
            logger.info("rlopt leaves out a plan (%s): %s", rival.belief, error)
            return
        self.measured.append(
            MeasuredPlan(str(rival.belief), rival.plan.cost_after_ms, found.gain, found.spread, is_kept)
        )
        if is_kept:
            self.best, self._best_lowered = rival, lowered
        del lowered
        gc.collect()  # the graph that has lost lies in cycles, with its packed weights

    def _built(self, graph: _C.Graph) -> Lowered:
        job = self._contestant.job
        return lowered_from(write(dataclasses.replace(job.program, graph=graph)), graph, job, self._options)


def _is_clearly_faster(found: Timing) -> bool:
    return found.is_calm and found.gain > max(_LEAST_GAIN, found.spread)
