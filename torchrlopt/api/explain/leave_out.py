"""Predicts and measures what each group of steps is worth: the plan without it against the plan with it."""

from __future__ import annotations

import dataclasses

from torchrlopt import _C
from torchrlopt.capture.job import Job
from torchrlopt.executors import registry
from torchrlopt.executors.registry import Lowered
from torchrlopt.judge import timing
from torchrlopt.onnx.writer import write
from torchrlopt.options import Options
from torchrlopt.plan import search
from torchrlopt.report import LeftOut, Report
from torchrlopt.report.steps import meaning_of
from torchrlopt.substitutions import load_library
from torchrlopt.substitutions.load import subset_of


def left_out(job: Job, prices: _C.CostModel, report: Report, options: Options) -> tuple[LeftOut, ...]:
    """Plan again without the substitutions of each group, and time the results against the whole plan's.

    All these plans, including the whole one, are greedy's: otherwise this would compare searches.

    Args:
        job: the graph.
        prices: of the executor.
        report: of a plan for it, whose groups are left out one by one.
        options: the executor, and how long to time.

    Raises:
        RlOptError: a graph cannot be built.
    """
    library = load_library()
    greedy = dataclasses.replace(options, search=options.search.with_searcher("greedy"))
    whole, whole_ms = _built(job, library, prices, greedy)
    found = []
    for group in report.step_groups():
        names = [name for name in library.names if meaning_of(library.family(name)) != group.meaning]
        without, without_ms = _built(job, subset_of(library, names), prices, greedy)
        settle = registry.row(options.executor).needs_settling
        timed = timing.measure(
            whole, without, job.traced.own_inputs, options.timing.measure_ms, 0.0, settle=settle
        )
        more_ms = timed.after_ms - timed.before_ms
        spread_ms = timed.spread * timed.before_ms
        found.append(LeftOut(group.meaning, without_ms - whole_ms, more_ms, spread_ms))
    return tuple(found)


def _built(job: Job, library: _C.Library, prices: _C.CostModel, options: Options) -> tuple[Lowered, float]:
    """Build greedy's plan with a library; return the callable, and its predicted time in milliseconds."""
    graph = job.program.graph
    plan = search.search(graph, library, prices, options.search)
    planned = search.replay(graph, library, plan)
    model = write(dataclasses.replace(job.program, graph=planned))
    return registry.get(options.executor).lower(model, job.captured, options.lowering), plan.cost_after_ms
