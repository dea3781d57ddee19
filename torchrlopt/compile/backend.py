"""The torch.compile backend, and the place where the stages are composed.

trace -> capture -> read -> (plan -> write -> lower -> check, for each executor that is tried): the lines of
`compile_graph`, `_rewrite` and `attempt.attempt`. Whatever fails, or does not pay, leaves the user with the
graph that came in.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchrlopt.capture import aot
from torchrlopt.capture.job import Job, capture_traced, read_captured
from torchrlopt.capture.trace import Traced, trace
from torchrlopt.compile import timing
from torchrlopt.compile.artefacts import tell_report
from torchrlopt.compile.attempt import Attempt, attempt, folder_of, timed
from torchrlopt.compile.choice import choose
from torchrlopt.compile.compiled import Compiled
from torchrlopt.compile.contestant import Contestant
from torchrlopt.compile.fallback import keep_original, warn_of, warn_without_gain
from torchrlopt.compile.memory import MEMORY
from torchrlopt.compile.own_weights import are_fixed
from torchrlopt.compile.release import note_weights, release
from torchrlopt.compile.repro.folder import note_failure
from torchrlopt.errors import OptionsError
from torchrlopt.executors import registry
from torchrlopt.executors.kept_heap import give_back
from torchrlopt.executors.lowering.lazy_code import forward_of
from torchrlopt.executors.registry import Lowered
from torchrlopt.loading import take_ms
from torchrlopt.options import Options
from torchrlopt.plan import planning
from torchrlopt.report import Report

_serial = itertools.count()

_NOT_FIXED = (
    "weights='frozen': the graph reads weights that are not an optimised model's own: all are checked"
)

_PLAIN_SAVING_MS = 0.2
"""Where a call saves more than this, what AOTAutograd does around it cannot turn the verdict."""


_MODES: dict[str | None, dict[str, Any]] = {
    None: {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"executor": "auto", "cuda_graphs": True},
    "max-autotune-no-cudagraphs": {"executor": "auto"},
}
"""The options that torch.compile's modes stand for."""


def rlopt(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend behind `torch.compile(model, backend="rlopt", options={...})`.

    Args:
        gm: Dynamo's graph.
        example_inputs: its inputs, weights among them: real tensors and SymInts.
        options: names and values of `Options`.
        mode: as torch.compile has them, which passes it on: "reduce-overhead" stands for `cuda_graphs=True`,
            "max-autotune" for `executor="auto"` with it, "max-autotune-no-cudagraphs" without.

    Returns:
        A callable that computes what `gm` computes.

    Raises:
        OptionsError: an option is unknown or ill-typed.
        RlOptError: a stage failed and `on_error="raise"`.
    """
    if mode not in _MODES:
        raise OptionsError(
            "torch.compile's mode= is none of this backend's",
            expected=", ".join(filter(None, _MODES)),
            got=mode,
            todo="use options={...}",
        )
    chosen = Options.from_dict({**_MODES[mode], **(options or {})})
    return compile_graph(gm, example_inputs, chosen, MEMORY.reports.append)


def reset() -> None:
    """Forget everything kept in memory; called by `torch._dynamo.reset()`."""
    MEMORY.clear()


def reports() -> list[Report]:
    """Reports of the graphs most recently compiled through torch.compile, oldest first."""
    return list(MEMORY.reports)


rlopt.reset = reset  # type: ignore[attr-defined]  # Dynamo looks for it on the backend


@dataclasses.dataclass
class _Outcome:
    """What `compile_graph` learns while AOTAutograd holds the thread.

    Attributes:
        report: of the graph, or of the part of the way that it came.
        traced: the graph, where it came so far.
        lowered: the rewritten graph, where it was built in this process and is right.
        key: of the graph in memory.
        answer_ms: how long AOTAutograd waited for us.
    """

    report: Report
    traced: Traced | None = None
    lowered: Lowered | None = None
    key: str = ""
    answer_ms: float = 0.0


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    record: Callable[[Report], None],
    model: str | None = None,
) -> Callable[..., Any]:
    """Compile one of Dynamo's graphs.

    Args:
        gm: Dynamo's graph; not changed.
        example_inputs: real tensors and SymInts.
        options: the user's choices.
        record: is given the report.
        model: where Dynamo finds the one model that this is compiled for, as an expression; None where the
            code may serve several.

    Returns:
        The rewritten graph behind AOTAutograd's wrapper where it is right and faster, else `gm` itself.
    """
    outcome = _Outcome(Report(options.searcher, options.executor))
    run = None
    try:
        outcome.report.phases_ms, outcome.report.cut = take_ms(), aot.cut_at(gm)
        run = _compiled(gm, example_inputs, options, outcome, model)
        if outcome.report.kept == "rewritten" and options.release_weights:
            _release(outcome)
        save_report(outcome.report, options)
        warn_without_gain(outcome.report)
    except aot.REQUESTS:
        raise
    except Exception as error:
        _note_failure(gm, example_inputs, options, outcome, error)
        if options.on_error == "raise":
            raise
        keep_original(error, outcome.report)
        save_changed_report(outcome.report, options)
    outcome.lowered = None
    give_back()
    tell_report(outcome.report)
    record(outcome.report)
    return run if run is not None and outcome.report.kept == "rewritten" else gm.forward


def _release(outcome: _Outcome) -> None:
    """Hold weights once, as far as that can be."""
    traced, lowered = outcome.traced, outcome.lowered
    assert traced is not None, "it was traced, or there were no rewritten graph"
    if _NOT_FIXED in outcome.report.notes:
        return
    if lowered is None or not getattr(lowered, "unread", ()):
        note = "release_weights: every weight is read in calls, or the executor does not tell"
        outcome.report.notes = (*outcome.report.notes, note)
        return
    with timed(outcome.report, "release"):
        release(outcome.report, traced.inputs, traced.static, lowered)


def _note_failure(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    outcome: _Outcome,
    error: Exception,
) -> None:
    """Leave what repeats it: with the ATen graph, or with Dynamo's where there is none."""
    traced = outcome.traced
    if traced is None:
        note_failure(gm, example_inputs, (), options, outcome.report, error)
    else:
        note_failure(traced.aten, traced.inputs, traced.static, options, outcome.report, error)


def _compiled(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    outcome: _Outcome,
    model: str | None,
) -> Callable[..., Any]:
    """The graph behind AOTAutograd's wrapper, with the rewritten or the original graph in it."""
    original = aot.under_autocast(forward_of(gm))  # its code is generated here, not while it is timed

    def answer(traced: Traced) -> Compiled | None:
        start = time.perf_counter()
        outcome.traced = traced
        try:
            chosen = options.on(traced.device.type)
            if options.weights == "frozen" and not are_fixed(gm, traced.static, traced.num_lifted, model):
                # What a call brings along may be other weights each time, and nobody has promised otherwise.
                chosen = dataclasses.replace(chosen, weights="check", release_weights=False)
                outcome.report.notes = (*outcome.report.notes, _NOT_FIXED)
            return _answer(original, traced, chosen, outcome)
        finally:
            outcome.answer_ms = (time.perf_counter() - start) * 1e3

    def leave(reason: str) -> None:
        outcome.report.fallback_reason = reason

    start = time.perf_counter()
    try:
        run = trace(gm, example_inputs, answer, leave)
    finally:
        outcome.report.phases_ms["trace"] = (time.perf_counter() - start) * 1e3 - outcome.answer_ms
    if outcome.report.kept == "rewritten" and options.measure:
        _time_as_called(original, run, options, outcome)
    return run


def _time_as_called(
    original: Callable[..., Any], run: Callable[..., Any], options: Options, outcome: _Outcome
) -> None:
    """Time the graph once more with what AOTAutograd does around it, where that may matter.

    That is where the graph writes to its inputs, since AOTAutograd copies the new values, and where so little
    is saved that some microseconds in every call may eat it up.
    """
    report, traced = outcome.report, outcome.traced
    assert traced is not None, "it was traced, or there were no rewritten graph"
    before, after = report.measured_before_ms, report.measured_after_ms
    if report.is_cache_hit or before is None or after is None:
        return
    if not traced.mutated and before - after > _PLAIN_SAVING_MS:
        return
    with timed(report, "timing"):
        found = timing.measure(
            original,
            run,
            lambda: traced.own_inputs()[traced.num_lifted :],
            options.measure_ms,
            options.min_gain,
            settle=registry.row(report.executor).needs_settling,
        )
    report.measured_before_ms, report.measured_after_ms = found.before_ms, found.after_ms
    report.measured_spread, report.measured_is_calm = found.spread, found.is_calm
    report.measured_is_bound = found.is_bound
    if found.gain < options.min_gain:
        report.kept, report.fallback_reason = "original", planning.not_faster(found.gain, options)
        _remember_original(outcome, options)


def _remember_original(outcome: _Outcome, options: Options) -> None:
    if _is_shared(options):  # else nobody will ask for this key again
        MEMORY.keep_original(outcome.key, outcome.report)


def save_report(report: Report, options: Options) -> None:
    """Leave the report beside the graphs of this compilation, where the user asked for files."""
    folder = folder_of(report.graph_hash, options)
    if folder is not None and "save" in report.phases_ms:
        (folder / "report.json").write_text(report.to_json(), encoding="utf-8")
        report.save(folder / "report.html")


def save_changed_report(report: Report, options: Options) -> None:
    """As `save_report`, of what became of a graph later; a folder that refuses it costs no call."""
    try:
        save_report(report, options)
    except OSError as error:
        if options.on_error == "raise":
            raise
        warn_of(error)


def _answer(
    original: Callable[..., Any], traced: Traced, options: Options, outcome: _Outcome
) -> Compiled | None:
    """The compiled graph, from memory or anew; None where the original is kept."""
    outcome.key = f"{traced.content} {options}"
    if not _is_shared(options):
        outcome.key += f" {next(_serial)}"
    known = MEMORY.find(outcome.key)
    if known is not None:
        cut, phases_ms = outcome.report.cut, outcome.report.phases_ms  # another function may have this graph
        outcome.report = dataclasses.replace(known[1], phases_ms=phases_ms, is_cache_hit=True, cut=cut)
        return known[0]
    lowered, outcome.report, _ = _rewrite(original, traced, options, outcome.report)
    if lowered is None:
        _remember_original(outcome, options)
        return None
    outcome.report.kept = "rewritten"
    outcome.lowered = lowered
    note_weights(outcome.report, traced.inputs, traced.static, lowered)
    aten, static, report = traced.aten, traced.static, outcome.report  # not the inputs: calls have their own

    def note(error: Exception, args: Sequence[Any]) -> None:
        note_failure(aten, args, static, options, report, error)

    compiled = Compiled(lowered, aten, report, options.on_error, options.verify, note, traced.num_added)
    MEMORY.keep(outcome.key, compiled)
    return compiled


def _is_shared(options: Options) -> bool:
    """Whether what is compiled serves others that ask for the same graph with the same options.

    Not where the weights are baked in, nor where the plan is in a file, which may be another one by then.
    """
    return options.weights != "frozen" and options.plan is None


def _rewrite(original: Callable[..., Any], traced: Traced, options: Options, report: Report) -> Attempt:
    """The stages up to the choice of the executor, then an attempt with each that is worth one."""
    with timed(report, "capture"):
        captured = capture_traced(traced)
        report.opaque = captured.opaque
    with timed(report, "read"):
        job = Job(traced, captured, read_captured(captured))
    contestant = Contestant(job, _takes_lifted(original, traced.num_lifted), traced.own_inputs)
    return choose(functools.partial(attempt, contestant), contestant, options, report)


def _takes_lifted(original: Callable[..., Any], num_lifted: int) -> Callable[..., Any]:
    """Dynamo's graph, called with the inputs of the ATen graph."""
    if num_lifted == 0:
        return original
    return lambda *args: original(*args[num_lifted:])
