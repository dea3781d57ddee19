"""Finds the fastest plan on this machine: a few are built and timed against the searched one.

Prices select them: the cheapest that differ by more than a timing could miss. Learned models of latency
predicted the winner no better (docs/training.md). The rest of the attempt checks the winner, times it against
the original, and stores it.
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
from torchrlopt.compile.contestant import Contestant, lowered_from, written
from torchrlopt.compile.progress import progress
from torchrlopt.executors import registry
from torchrlopt.executors.registry import Lowered
from torchrlopt.judge.policy import Policy
from torchrlopt.judge.timing import measure
from torchrlopt.machine.contention import own_time
from torchrlopt.options import Options
from torchrlopt.plan.alternatives import Alternative, alternatives, worth_measuring
from torchrlopt.plan.planning import Planned, profile_for
from torchrlopt.report import MeasuredPlan
from torchrlopt.substitutions import library_without

logger = logging.getLogger("torchrlopt")

_POOL = 4
"""Number of plans made per plan that is measured: some of the cheapest are equivalent."""

_POOL_S = 3.0
"""Time limit for making plans, in seconds during which the process had a processor."""


def is_contested(planned: Planned, options: Options) -> bool:
    """Whether to measure plans: not if the user has chosen one, or if it was done before."""
    is_free = options.plan is None and options.search.searcher != "none"
    return options.timing.measure_plans > 1 and is_free and not planned.is_stored


def fastest_plan(
    contestant: Contestant, planned: Planned, options: Options
) -> tuple[Planned, tuple[MeasuredPlan, ...]]:
    """Measure plans next to the searched one, and keep the fastest.

    Returns:
        The winner, and what was measured. After Ctrl-C the fastest so far.
    """
    policy = Policy.of(options.timing)
    duel = functools.partial(
        measure,
        inputs=contestant.inputs,
        limit_ms=policy.limit_ms,
        min_gain=policy.duel_margin,
        settle=registry.row(options.executor).needs_settling,
    )
    best: tuple[Alternative, Lowered] | None = None
    measured: list[MeasuredPlan] = []
    try:
        rivals = _rivals(contestant, planned, options)
        if rivals:
            searched = _built(planned.graph, contestant, options)
            with progress("rlopt measures plans", len(rivals)) as advance:
                for rival in rivals:
                    advance(str(rival.belief))
                    try:
                        lowered = _built(rival.graph, contestant, options)
                        timing = duel(searched, lowered)
                        # Timed twice: of many equally fast plans one is the fastest by chance.
                        is_kept = (
                            policy.is_clearly_faster(timing)
                            and policy.is_clearly_faster(duel(searched, lowered))
                            and (best is None or policy.is_clearly_faster(duel(best[1], lowered)))
                        )
                    except fallback.recoverable_errors(options.on_error) as error:
                        fallback.log_traceback(error)
                        logger.info("rlopt leaves out a plan (%s): %s", rival.belief, error)
                        continue
                    if is_kept:
                        best = rival, lowered
                    measured.append(
                        MeasuredPlan(
                            str(rival.belief), rival.plan.cost_after_ms, timing.gain, timing.spread, is_kept
                        )
                    )
                    del lowered
                    gc.collect()  # reference cycles keep the losing graph alive, with its packed weights
    except KeyboardInterrupt:
        logger.warning("rlopt was interrupted: the fastest plan so far is kept")
        planned = dataclasses.replace(planned, key=None)  # the next process measures them all
    if best is None:
        return planned, tuple(measured)
    fastest, _ = best
    plan = dataclasses.replace(fastest.plan, searcher=options.search.searcher, found_by="measurements")
    return dataclasses.replace(planned, plan=plan, graph=fastest.graph), tuple(measured)


def _rivals(contestant: Contestant, planned: Planned, options: Options) -> list[Alternative]:
    subject = contestant.subject
    profile = profile_for(options, subject.device)
    graph, library = subject.program.graph, library_without(options.exclude)
    found = alternatives(graph, library, profile, subject.sizes, options.search, planned.plan)
    count = options.timing.measure_plans - 1
    pool = itertools.islice(_within(found, _POOL_S), _POOL * count)
    return worth_measuring(pool, planned.graph, profile.cost_model(subject.sizes), count)


def _within(found: Iterator[Alternative], seconds: float) -> Iterator[Alternative]:
    start = own_time()
    return itertools.takewhile(lambda _: own_time() - start < seconds, found)


def _built(graph: _C.Graph, contestant: Contestant, options: Options) -> Lowered:
    return lowered_from(written(graph, contestant.job), graph, contestant, options)
