"""One attempt: a job planned for one executor, built, checked and timed.

plan -> write -> lower -> check, consecutive lines of `attempt`; plans may be measured in between.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import onnx_ir
import torch

from torchrlopt.capture.job import Job
from torchrlopt.capture.sampling import extreme_inputs, random_inputs, reduced_inputs
from torchrlopt.compile import check, fallback, timing
from torchrlopt.compile.artefacts import tell_graphs
from torchrlopt.compile.closeness.floats import Own
from torchrlopt.compile.contestant import Contestant, lowered_from, subject_of
from torchrlopt.compile.fallback import recoverable_errors, told
from torchrlopt.compile.plan_contest import fastest_plan, is_contested
from torchrlopt.compile.readable import ReadableNames
from torchrlopt.errors import UnsupportedError
from torchrlopt.executors import registry
from torchrlopt.executors.registry import Lowered
from torchrlopt.onnx import files
from torchrlopt.onnx.writer import fresh_prefix, write
from torchrlopt.options import Options
from torchrlopt.plan.planning import Planned, Verified, make_plan, tell_plan
from torchrlopt.report import Drawing, Report

logger = logging.getLogger("torchrlopt")


class Attempt(NamedTuple):
    """What came of an attempt.

    Attributes:
        lowered: the rewritten graph; None where the original is kept, and the report says why.
        report: what was done.
        save: leaves the files that `save_dir` asks for once more; None where there are none.
    """

    lowered: Lowered | None
    report: Report
    save: Callable[[], None] | None = None


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
    with timed(report, "plan"):
        planned = make_plan(subject_of(contestant.job), options, report)
    if is_contested(planned, options):
        with timed(report, "measure plans"):
            fastest = fastest_plan(contestant, planned, options, report)
        if fastest.plan != planned.plan:
            try:
                return _finish(contestant, fastest, options, report)
            except recoverable_errors(options) as error:
                fallback.log_traceback(error)
                logger.warning(
                    "the plan that was the fastest cannot be used, the searched one is: %s", told(error)
                )
            tell_plan(subject_of(contestant.job), planned, options, report)
        planned = dataclasses.replace(planned, key=fastest.key)
    return _finish(contestant, planned, options, report)


def _finish(contestant: Contestant, planned: Planned, options: Options, report: Report) -> Attempt:
    """Build, check and time what a plan leads to."""
    job = contestant.job
    tell_graphs(job.program.graph, planned.graph)
    with timed(report, "write"):
        model = write(dataclasses.replace(job.program, graph=planned.graph))
    with timed(report, "lower"):
        lowered = lowered_from(model, planned.graph, job, options)
        report.parts = getattr(lowered, "parts", ())
    folder, save = folder_of(planned.graph_hash, options), None
    if folder is not None:
        save = functools.partial(_save, job, model, report.records[0].draw(), folder)
        with timed(report, "save"):
            save()
    if options.verify:
        with timed(report, "check"):
            report.numerical_error = _verify(contestant, lowered, planned, options)
            report.checked_sets = 1
    report.weight_sets = 1
    if options.measure and planned.timing is None:
        with timed(report, "timing"):
            _measure(contestant, lowered, planned, options)
    is_kept = planned.settle(options, report)
    return Attempt(lowered if is_kept else None, report, save)


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
        # Other executors and frozen weights bind the result to these weights: the check is with these, then.
        row = registry.row(options.executor)
        holds_for_all = options.weights != "frozen" and row.holds_for_all_weights
        found = _verify_random(contestant, lowered, inputs, holds_for_all, options)
        if found is None:  # the model is particular about its inputs: the user's own, then
            return check.verify(aten, aten.forward, lowered, inputs).worst
        if not holds_for_all:
            return found.worst
        planned.is_stored, planned.verified = False, Verified(found.worst, found.own)
    new = check.run(lowered, inputs)
    own = [Own(*each) for each in planned.verified.own]
    check.confirm(aten, aten.forward, new, inputs, "the user's weights and inputs", own)
    return planned.verified.error


def _verify_random(
    contestant: Contestant, lowered: Lowered, inputs: Sequence[Any], holds_for_all: bool, options: Options
) -> check.Errors | None:
    """The check on random inputs, of few rows where that goes; None where the model takes none of them.

    Raises:
        VerificationError: the rewritten graph is wrong.
    """
    traced = contestant.job.traced
    aten = traced.aten
    for is_reduced in (True, False):  # the user's own sizes come after this check
        given = _reduced(contestant, inputs) if is_reduced else inputs
        if given is None:
            continue
        fresh = random_inputs(given, traced.static, options.seed)
        if not holds_for_all:
            fresh = [inputs[i] if i in traced.static else x for i, x in enumerate(fresh)]
        key = holds_for_all, is_reduced, False
        try:
            if key not in contestant.standards:
                contestant.standards[key] = check.standard(aten, aten.forward, fresh)
            found = check.verify_against(contestant.standards[key], lowered, fresh)
        except UnsupportedError as error:  # such as rows of one input that another one's numbers name
            logger.debug("the check goes on with other inputs: %s", error)
            continue
        extreme = extreme_inputs(given, fresh, traced.static)
        # On a GPU an index beyond its range, which may be made of such numbers, would end the program.
        # What an operator of others does with them is not known: it may take time or memory by their size.
        is_known = traced.device.type == "cpu" and not _has_foreign_operators(aten)
        if extreme is not None and is_known:
            _verify_extreme(contestant, lowered, extreme, (holds_for_all, is_reduced, True))
        return found
    return None


def _has_foreign_operators(aten: torch.fx.GraphModule) -> bool:
    operators = (node.target for node in aten.graph.nodes if node.op == "call_function")
    return any(
        isinstance(each, torch._ops.OpOverload) and each.namespace not in ("aten", "prims")
        for each in operators
    )


def _verify_extreme(
    contestant: Contestant, lowered: Lowered, inputs: Sequence[Any], key: tuple[bool, bool, bool]
) -> None:
    """The check on extreme inputs, where the model takes them and makes numbers of them.

    Raises:
        VerificationError: the rewritten graph is wrong.
    """
    aten = contestant.job.traced.aten
    try:
        if key not in contestant.standards:
            contestant.standards[key] = check.standard(aten, aten.forward, inputs, is_extreme=True)
        if check.outputs_are_finite(contestant.standards[key]):
            check.verify_extreme(contestant.standards[key], lowered)
    except UnsupportedError as error:
        logger.debug("nothing is known for extreme inputs: %s", error)


def _reduced(contestant: Contestant, inputs: Sequence[Any]) -> list[Any] | None:
    """See `reduced_inputs`. On a GPU an index beyond the rows that are left would end the program."""
    traced = contestant.job.traced
    varying = (each for at, each in enumerate(inputs) if at not in traced.static)
    has_numbers = any(isinstance(x, torch.Tensor) and not x.is_floating_point() for x in varying)
    if traced.device.type != "cpu" and has_numbers:
        return None
    return reduced_inputs(traced.aten, inputs, traced.static)


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
