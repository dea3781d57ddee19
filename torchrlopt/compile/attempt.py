"""One attempt: plans a job for one executor, builds, checks and times it.

plan -> write -> lower -> check, consecutive lines of `attempt`; plans may be measured in between.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import onnx_ir

from torchrlopt.capture.job import Job
from torchrlopt.compile.artefacts import log_graphs
from torchrlopt.compile.compiled import Lower
from torchrlopt.compile.contestant import Contestant, lowered_from, written
from torchrlopt.compile.plan_contest import fastest_plan, is_contested
from torchrlopt.compile.precision_note import suggestion
from torchrlopt.compile.readable import ReadableNames
from torchrlopt.compile.within_budget import within_budget
from torchrlopt.executor_table import BASELINE
from torchrlopt.executors import registry
from torchrlopt.executors.registry import Lowered
from torchrlopt.judge import faster
from torchrlopt.judge.policy import Policy
from torchrlopt.onnx import files
from torchrlopt.onnx.writer import fresh_prefix
from torchrlopt.options import DebugOptions, Options
from torchrlopt.plan.planning import Planned, facts_of, make_plan
from torchrlopt.report import Contribution, Drawing, Journal, Timing
from torchrlopt.report.parts import PRECISION

_BRIEF_MS = 1.0
"""Time limit for confirming a stored verdict against a plan: no graph is timed in less than two rounds."""


@dataclasses.dataclass(frozen=True)
class Attempt:
    """The result of an attempt.

    Attributes:
        options: of the attempt.
        journal: what happened.
        run: the rewritten graph; None if the original is kept.
        timing: of both graphs; None if the attempt failed before, or timing was off.
        reason: why the original is kept.
        save: writes the files for `save_dir` again; None if there are none.
        lower: the budget of `run` and its exact form, if it computes partly in lower precision.
        correct: stores another timing in place of the one that an earlier process stored, or of none; None if
            the timing is this process's own.
        rejected: the rewritten graph if it is not faster, and `measure_parts` asks what its parts are worth.
    """

    options: Options
    journal: Journal
    run: Lowered | None = None
    timing: Timing | None = None
    reason: str | None = None
    save: Callable[[], None] | None = None
    lower: Lower | None = None
    correct: Callable[[Timing], None] | None = None
    rejected: Lowered | None = None

    @property
    def name(self) -> str:
        """The executor."""
        return self.options.executor

    @property
    def unbuilt(self) -> Attempt:
        """The same without the built graphs, which hold packed weights."""
        return dataclasses.replace(self, run=None, rejected=None)


Try = Callable[[Options, Journal], Attempt]
"""Makes an attempt with the plan and executor named by the options, and records it in the journal."""


def attempt(contestant: Contestant, options: Options, journal: Journal) -> Attempt:
    """Make one attempt.

    Raises:
        RlOptError: a stage failed, or the rewritten graph is wrong.
    """
    journal.add(
        executor=options.executor,
        searcher=options.search.searcher,
        graph_hash=contestant.subject.graph_hash,
    )
    with journal.phase("plan"):
        planned = make_plan(contestant.subject, options)
    journal.add(**facts_of(contestant.subject, planned, options))
    if is_contested(planned, options):
        with journal.phase("measure plans"):
            fastest, measured = fastest_plan(contestant, planned, options)
        journal.add(measured_plans=measured)
        planned = fastest
        journal.add(**facts_of(contestant.subject, planned, options))
    return _finish(contestant, planned, options, journal)


def _finish(contestant: Contestant, planned: Planned, options: Options, journal: Journal) -> Attempt:
    """Build, check and time a planned graph."""
    job = contestant.job
    log_graphs(job.program.graph, planned.graph)
    with journal.phase("write"):
        model = written(planned.graph, job)
    with journal.phase("lower"):
        lowered = lowered_from(model, planned.graph, contestant, options)
        journal.add(parts=getattr(lowered, "parts", ()))
    folder, save = folder_of(planned.graph_hash, options.debug), None
    if folder is not None:
        drawing = facts_of(contestant.subject, planned, options)["records"][0].draw()
        save = functools.partial(_save, job, model, drawing, folder)
        with journal.phase("save"):
            save()
    row, policy = registry.row(options.executor), Policy.of(options.timing)
    verified, timing = planned.verified, planned.timing
    if options.verify:
        # Other executors and frozen weights bind the result to these weights, so the check uses them.
        holds_for_all = options.lowering.weights != "frozen" and row.holds_for_all_weights
        with journal.phase("check"):
            checked = contestant.check.verify(lowered, holds_for_all, verified)
        journal.add(numerical_error=checked.error)
        verified = checked if checked.holds_for_all_weights else verified
    if options.timing.measure:
        against = functools.partial(
            faster.against,
            contestant.original,
            lowered,
            contestant.inputs,
            settle=row.needs_settling,
            is_warm=options.verify,
        )
        if timing is not None and not policy.is_faster(timing):
            # Calls of the original would never show that it is slower, so two rounds do.
            with journal.phase("timing"):
                brief = against(dataclasses.replace(policy, limit_ms=_BRIEF_MS)).timing
            if policy.is_contradicted(timing, brief):
                timing = None
        if timing is None:
            with journal.phase("timing"):
                timing = against(policy).timing
        journal.add_timing(timing)
    is_old = timing is planned.timing
    is_known = planned.is_stored and verified is planned.verified and is_old
    planned = dataclasses.replace(planned, verified=verified, timing=timing, is_stored=is_known)
    planned.remember(policy)
    correct = functools.partial(_correct, planned, policy) if is_old else None
    if options.precision.max_error is not None:
        lower = _in_lower_precision(contestant, planned, lowered, options, journal, timing)
        if lower is not None:
            return dataclasses.replace(lower, save=save)
    elif options.executor == BASELINE:
        note = suggestion(planned.graph, contestant, options)
        if note is not None:
            journal.add_note(note)
    if options.timing.measure and timing is not None and not policy.is_faster(timing):
        rejected = lowered if options.timing.measure_parts else None
        return Attempt(options, journal, None, timing, not_faster(timing, policy), save, rejected=rejected)
    timed = timing if options.timing.measure else None
    return Attempt(options, journal, lowered, timed, save=save, correct=correct)


def _in_lower_precision(
    contestant: Contestant,
    planned: Planned,
    exact: Lowered,
    options: Options,
    journal: Journal,
    timing: Timing | None,
) -> Attempt | None:
    """Return the graph that computes partly in lower precision, if it is faster than the exact one."""
    with journal.phase("precision"):
        found = within_budget(contestant, planned.graph, exact, options, planned.key)
    journal.add(precision=(found.record,))
    if found.run is None or found.budget is None:
        return None
    lower, job = registry.get(options.executor).lower, contestant.job
    exact_again = functools.partial(lower, written(planned.graph, job), job.captured, options.lowering)
    limits = Lower(found.budget, exact_again, found.narrow)
    if timing is None:
        return Attempt(options, journal, found.run, lower=limits)
    policy, settle = Policy.of(options.timing), registry.row(options.executor).needs_settling
    against = functools.partial(faster.against, settle=settle, is_warm=True)
    with journal.phase("timing"):
        duel = against(exact, found.run, contestant.inputs, policy).timing
        if not policy.is_faster(duel):
            ms = f"{duel.after_ms:.3f} and {duel.before_ms:.3f} ms"
            reason = f"lower precision is not faster than float32: {ms}"
            journal.add(precision=(found.record.without_effect(reason),))
            return None
        timing = against(contestant.original, found.run, contestant.inputs, policy).timing
    if not policy.is_faster(timing):
        reason = f"in lower precision, {not_faster(timing, policy)}"
        journal.add(precision=(dataclasses.replace(found.record, error=None, reason=reason),))
        return None
    journal.add_timing(timing)
    journal.add(split=(Contribution(PRECISION, duel.before_ms, duel.after_ms, duel.spread, duel.is_calm),))
    return Attempt(options, journal, found.run, timing, lower=limits)


def _correct(planned: Planned, policy: Policy, timing: Timing) -> None:
    """Store a plan with another timing than it had."""
    dataclasses.replace(planned, timing=timing, is_stored=False).remember(policy)


def not_faster(timing: Timing, policy: Policy) -> str:
    """Return why the original is kept if the measured gain is too small."""
    how, numbers = policy.shortfall(timing)
    return f"the rewritten graph is {how}: {numbers}"


def folder_of(graph_hash: str, options: DebugOptions) -> Path | None:
    """Return the folder for the files of a graph; None if the user did not ask for files."""
    return None if options.save_dir is None else Path(options.save_dir) / graph_hash[:12]


def _save(job: Job, model: onnx_ir.Model, drawing: Drawing, folder: Path) -> None:
    """Save both graphs to the user's folder, under names that show where nodes come from."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ReadableNames(drawing, fresh_prefix(job.program.source))
    for graph, name in ((job.captured.model, "before.onnx"), (model, "after.onnx")):
        files.save_message(names.applied_to(files.message(graph)), folder / name)
