"""One attempt: a job planned for one executor, built, checked and timed.

plan -> write -> lower -> check, consecutive lines of `attempt`; plans may be measured in between.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import onnx_ir

from torchrlopt.capture.job import Job
from torchrlopt.capture.sampling import random_inputs, reduced_inputs
from torchrlopt.compile import check, timing
from torchrlopt.compile.artefacts import tell_graphs
from torchrlopt.compile.contestant import Contestant, lowered_from, subject_of
from torchrlopt.compile.plan_contest import fastest_plan, is_contested
from torchrlopt.compile.readable import ReadableNames
from torchrlopt.errors import UnsupportedError
from torchrlopt.executors import registry
from torchrlopt.executors.registry import Lowered
from torchrlopt.onnx import files
from torchrlopt.onnx.writer import fresh_prefix, write
from torchrlopt.options import Options
from torchrlopt.plan.planning import Planned, Verified, make_plan
from torchrlopt.report import Drawing, Report


class Attempt(NamedTuple):
    """What came of an attempt.

    Attributes:
        lowered: the rewritten graph; None where the original is kept, and the report says why.
        report: what was done.
    """

    lowered: Lowered | None
    report: Report


Try = Callable[[Options, Report], Attempt]
"""Makes an attempt with the plan and the executor that the options name; fills the report."""


def attempt(contestant: Contestant, options: Options, report: Report) -> Attempt:
    """Make one attempt.

    Args:
        contestant: the graph and what it runs against.
        options: plan, executor, check and timing.
        report: is filled, also where this raises.

    Raises:
        RlOptError: a stage failed, or the rewritten graph is wrong.
    """
    job = contestant.job
    with timed(report, "plan"):
        planned = make_plan(subject_of(job), options, report)
    if is_contested(planned, options):
        with timed(report, "measure plans"):
            planned = fastest_plan(contestant, planned, options, report)
    tell_graphs(job.program.graph, planned.graph)
    with timed(report, "write"):
        model = write(dataclasses.replace(job.program, graph=planned.graph))
    with timed(report, "lower"):
        lowered = lowered_from(model, planned.graph, job, options)
        report.parts = getattr(lowered, "parts", ())
    folder = folder_of(planned.graph_hash, options)
    if folder is not None:
        with timed(report, "save"):
            _save(job, model, report.records[0].draw(), folder)
    if options.verify:
        with timed(report, "check"):
            report.numerical_error = _verify(contestant, lowered, planned, options)
            report.checked_sets = 1
    report.weight_sets = 1
    if options.measure and planned.timing is None:
        with timed(report, "timing"):
            _measure(contestant, lowered, planned, options)
    is_kept = planned.settle(options, report)
    return Attempt(lowered if is_kept else None, report)


def _measure(contestant: Contestant, lowered: Lowered, planned: Planned, options: Options) -> None:
    """Time the rewritten graph against the original; `planned` is told."""
    planned.is_stored = False
    planned.timing = timing.measure(
        contestant.original,
        lowered,
        contestant.inputs,
        options.measure_ms,
        options.min_gain,
        settle=registry.row(options.executor).needs_settling,
        is_warm=options.verify,
    )


def _verify(contestant: Contestant, lowered: Lowered, planned: Planned, options: Options) -> float:
    """The error against float64; one that does not hang on the user's tensors is remembered.

    Raises:
        VerificationError: the rewritten graph is wrong, for random weights or for the user's own.
    """
    traced, inputs = contestant.job.traced, contestant.inputs()
    aten = traced.aten
    if planned.verified is None:
        smaller = reduced_inputs(aten, inputs, traced.static)  # the user's own sizes come below
        fresh = random_inputs(inputs if smaller is None else smaller, traced.static, options.seed)
        # Other executors and frozen weights bind the result to these weights: the check is with these, then.
        row = registry.row(options.executor)
        holds_for_all = options.weights != "frozen" and row.holds_for_all_weights
        if not holds_for_all:
            fresh = [inputs[i] if i in traced.static else x for i, x in enumerate(fresh)]
        try:
            if holds_for_all not in contestant.standards:
                contestant.standards[holds_for_all] = check.standard(aten, aten.forward, fresh)
            found = check.verify_against(contestant.standards[holds_for_all], lowered, fresh)
        except UnsupportedError:  # the model is particular about its inputs: the user's own, then
            return check.verify(aten, aten.forward, lowered, inputs).worst
        if not holds_for_all:
            return found.worst
        planned.is_stored, planned.verified = False, Verified(found.worst, found.own)
        del fresh  # with weights that had noise added go what was packed of them
    new = check.run(lowered, inputs)
    own = [check.Own(*each) for each in planned.verified.own]
    check.confirm(aten, aten.forward, new, inputs, "the user's weights and inputs", own)
    return planned.verified.error


def folder_of(graph_hash: str, options: Options) -> Path | None:
    """Where the files of a graph go that the user asked for; None where there was no such wish."""
    return None if options.save_dir is None else Path(options.save_dir) / graph_hash[:12]


def _save(job: Job, model: onnx_ir.Model, drawing: Drawing, folder: Path) -> None:
    """Leave both graphs where the user asked for them, under names that say where things come from."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ReadableNames(drawing, fresh_prefix(job.program.source))
    for graph, name in ((job.captured.model, "before.onnx"), (model, "after.onnx")):
        files.save_message(names.applied_to(files.message(graph)), folder / name)


@contextmanager
def timed(report: Report, name: str) -> Iterator[None]:
    """Add the wall time of the block to the report's phases."""
    start = time.perf_counter()
    try:
        yield
    finally:
        report.phases_ms[name] = report.phases_ms.get(name, 0.0) + (time.perf_counter() - start) * 1e3
