"""The torch.compile backend, which runs the stages.

trace -> capture -> read -> (plan -> write -> lower -> check, for each executor that is tried): the lines of
`compile_graph`, `_rewrite` and `attempt.attempt`. If anything fails, or does not pay, the user gets the
original graph.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from torchrlopt.capture import aot
from torchrlopt.capture.autocast import under_autocast
from torchrlopt.capture.excluded import unmatched
from torchrlopt.capture.job import Job, capture_traced, read_captured
from torchrlopt.capture.trace import Traced, trace
from torchrlopt.compile.artefacts import log_report
from torchrlopt.compile.attempt import Attempt, attempt, folder_of, not_faster
from torchrlopt.compile.background import BACKGROUND
from torchrlopt.compile.by_calls import ByCalls, refusal, with_own_inputs
from torchrlopt.compile.by_size import BySize
from torchrlopt.compile.choice import Rest, choose, choose_at_first
from torchrlopt.compile.compiled import Compiled
from torchrlopt.compile.contestant import Contestant
from torchrlopt.compile.early_calls import checked_by_calls
from torchrlopt.compile.explained import calls_of, environment_of, measure_parts
from torchrlopt.compile.fallback import keep_original, warn_of, warn_without_gain
from torchrlopt.compile.free_memory import return_free_memory
from torchrlopt.compile.memory import MEMORY
from torchrlopt.compile.own_weights import are_fixed
from torchrlopt.compile.release import release, weights_facts
from torchrlopt.compile.repro_folder import repro_of
from torchrlopt.executors import registry
from torchrlopt.executors.lowering.lazy_code import forward_of
from torchrlopt.executors.registry import Lowered
from torchrlopt.judge import faster
from torchrlopt.judge.policy import Policy
from torchrlopt.loading import take_ms
from torchrlopt.options import DebugOptions, OnError, Options
from torchrlopt.report import Journal, Report, Status
from torchrlopt.storage.repro_folder import Repro

_NOT_FIXED = (
    "weights='frozen': the graph reads weights that are not an optimised model's own: all are checked"
)

_TRY_OTHERS = "; executor='auto' tries the other executors too"


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
        mode: torch.compile's, which passes it on; see `options.MODES`.

    Returns:
        A callable that computes what `gm` computes.

    Raises:
        OptionsError: an option or the mode is unknown or ill-typed.
        RlOptError: a stage failed and `on_error="raise"`.
    """
    chosen = Options(**{"mode": mode, **(options or {})})
    return compile_graph(gm, example_inputs, chosen, MEMORY.reports.append)


def reset() -> None:
    """Clear everything kept in memory; called by `torch._dynamo.reset()`."""
    MEMORY.clear()


def reports() -> list[Report]:
    """Reports of the graphs most recently compiled through torch.compile, oldest first."""
    return list(MEMORY.reports)


rlopt.reset = reset  # type: ignore[attr-defined]  # Dynamo looks for it on the backend


@dataclasses.dataclass
class _Compilation:
    """The state of one compilation: AOTAutograd calls back for the graph in the middle of it.

    Attributes:
        options: the user's choices.
        journal: what has happened.
        status: which graph runs; calls of the compiled graph change it later.
        traced: the graph, once it is traced.
        found: the chosen attempt, if something was built in this process.
        compiled: the rewritten graph in AOTAutograd's calling convention.
        known: the report of a graph that is in this process's memory.
        key: of the graph in memory; empty if it is not shared.
        answer_ms: how long AOTAutograd waited for us.
    """

    options: Options
    journal: Journal
    status: Status = dataclasses.field(default_factory=Status)
    traced: Traced | None = None
    found: Attempt | None = None
    compiled: Compiled | None = None
    known: Report | None = None
    key: str = ""
    answer_ms: float = 0.0

    def report(self) -> Report:
        """Return the report so far."""
        made = self.journal.report(self.status)
        if self.known is None:
            return made
        # The graph was compiled for another function: the cut and the phases are this one's own.
        return dataclasses.replace(self.known, phases_ms=made.phases_ms, is_cache_hit=True, cut=made.cut)

    def keep_original(self, reason: str) -> None:
        """Keep the original because of a verdict, which is not a failure."""
        if not self.options.tries_all and self.found is not None and not self.report().choices:
            reason += _TRY_OTHERS
        self.status.keep_original(reason)


@BACKGROUND.waits()
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
        record: called with the report.
        model: where Dynamo finds the one model that this is compiled for, as an expression; None if the code
            may serve several.

    Returns:
        The rewritten graph behind AOTAutograd's wrapper if it is right and faster, else `gm` itself.
    """
    if torch.are_deterministic_algorithms_enabled():  # here, so that what is shared by options knows of it
        options = dataclasses.replace(options, deterministic=True)
    this = _Compilation(options, Journal(searcher=options.search.searcher, executor=options.executor))
    run = None
    try:
        for phase, ms in take_ms().items():
            this.journal.add_ms(phase, ms)
        this.journal.add(cut=aot.cut_at(gm))
        run = _compiled(gm, example_inputs, this, model)
        if this.status.kept == "rewritten" and options.lowering.release_weights:
            _release(this)
        save_report(this.report(), options.debug, "raise")  # which keeps the original
        warn_without_gain(this.status)
    except aot.REQUESTS:
        raise
    except Exception as error:
        this.status = Status(repro=_repro_of(gm, example_inputs, this, error))
        this.known, this.key = None, ""
        if options.on_error == "raise":
            raise
        keep_original(error, this.status)
        save_report(this.report(), options.debug, options.on_error)
    report = this.report()
    _remember(this, report)
    log_report(report)
    record(report)
    chosen = gm.forward
    if run is not None and this.status.is_compiled:
        checked = _checked_by_calls(gm.forward, run, this, example_inputs, model)
        chosen = checked or _by_size(gm, example_inputs, run, this)
    has_built = this.found is not None
    this.found = this.compiled = this.traced = None  # AOTAutograd may keep us alive, but not unused builds
    if has_built:
        return_free_memory()
    return chosen


def _by_size(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], run: Callable[..., Any], this: _Compilation
) -> Callable[..., Any]:
    """Wrap a rewritten graph to run only for sizes for which it is faster, if sizes vary."""
    sizes = [at for at, each in enumerate(example_inputs) if isinstance(each, torch.SymInt)]
    options, traced, compiled = this.options, this.traced, this.compiled
    assert traced is not None, "it was traced, or there were no rewritten graph"
    assert compiled is not None, "it runs"
    # The original would read released weights back from their files.
    if not sizes or not options.timing.measure or options.lowering.release_weights:
        return run
    mutated = [at - traced.num_lifted for at in traced.mutated]
    settle = registry.row(this.report().executor).needs_settling
    policy = Policy.of(options.timing)
    wrapped = BySize(run, forward_of(gm), compiled, sizes, mutated, policy, settle, options.on_error)
    if this.known is None:  # else the sizes may be others
        wrapped.know(traced.inputs[traced.num_lifted :])
    return wrapped


def _checked_by_calls(
    original: Callable[..., Any],
    run: Callable[..., Any],
    this: _Compilation,
    example_inputs: Sequence[Any],
    model: str | None,
) -> Callable[..., Any] | None:
    """Return a callable whose first calls check the verdict of an earlier process, and correct a wrong one.

    None if there is no such verdict, or another timing follows. Calls of varying sizes are not compared with
    each other, and released weights are slow to read.
    """
    found, options, status = this.found, this.options, this.status
    if found is None or found.correct is None or found.timing is None or options.lowering.release_weights:
        return None
    if status.candidates or options.deterministic or any(isinstance(x, torch.SymInt) for x in example_inputs):
        return None
    stored, correct, policy = found.timing, found.correct, Policy.of(options.timing)
    saved_ms = stored.before_ms - stored.after_ms
    if model is not None and not policy.is_decided_without_guards(stored.before_ms, saved_ms):
        return None  # an optimised model's calls are timed as a whole

    def end(found: faster.Verdict) -> bool:
        if not policy.is_contradicted(stored, found.timing):
            return False
        correct(found.timing)
        if not found.is_faster:
            status.keep_original(f"calls contradict a stored verdict: {not_faster(found.timing, policy)}")
        return not found.is_faster

    return checked_by_calls(original, run, policy, end)


def _remember(this: _Compilation, report: Report) -> None:
    """Keep the graph in this process's memory if it can be shared."""
    if this.known is not None or not this.key:
        return
    if report.status.is_compiled:
        assert this.compiled is not None, "it runs"
        MEMORY.keep(this.key, this.compiled, report)
    elif this.found is not None:
        MEMORY.keep_original(this.key, report)


def _release(this: _Compilation) -> None:
    """Release duplicate weights as far as possible."""
    assert this.traced is not None, "it was traced, or there were no rewritten graph"
    if _NOT_FIXED in this.journal.report().notes:
        return
    lowered = None if this.found is None else this.found.run
    if lowered is None or not getattr(lowered, "unread", ()):
        this.journal.add_note(
            "release_weights: every weight is read in calls, or the executor does not report them"
        )
        return
    with this.journal.phase("release"):
        num_bytes = release(this.traced.inputs, this.traced.static, lowered)
        this.journal.add(released_bytes=num_bytes)


def _repro_of(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], this: _Compilation, error: Exception
) -> Repro | None:
    """Make the reproduction of a failure: with the ATen graph, or with Dynamo's if there is none."""
    traced, report = this.traced, this.report()
    if traced is None:
        return repro_of(gm, example_inputs, (), this.options, report, error)
    return repro_of(traced.aten, traced.inputs, traced.static, this.options, report, error)


def _compiled(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], this: _Compilation, model: str | None
) -> Callable[..., Any]:
    """Return the graph behind AOTAutograd's wrapper, with the rewritten or the original graph in it."""
    original = under_autocast(forward_of(gm))  # generates its code now, so that it is not timed

    def answer(traced: Traced) -> Compiled | None:
        start = time.perf_counter()
        this.traced = traced
        this.journal.add(environment=environment_of(this.options, traced.device))
        try:
            lowering = this.options.lowering.on(traced.device.type)
            if lowering.weights == "frozen" and not are_fixed(gm, traced.static, traced.num_lifted, model):
                # A call may pass other weights each time: the promise does not cover them.
                lowering = dataclasses.replace(lowering, weights="check", release_weights=False)
                this.journal.add_note(_NOT_FIXED)
            return _answer(original, traced, dataclasses.replace(this.options, lowering=lowering), this)
        finally:
            this.answer_ms = (time.perf_counter() - start) * 1e3

    start = time.perf_counter()
    try:
        run = trace(gm, example_inputs, answer, this.keep_original)
    finally:
        this.journal.add_ms("trace", (time.perf_counter() - start) * 1e3 - this.answer_ms)
    if this.status.kept == "rewritten" and this.options.timing.measure and not this.status.candidates:
        _time_as_called(original, run, this)
    return run


def _time_as_called(original: Callable[..., Any], run: Callable[..., Any], this: _Compilation) -> None:
    """Time the graph once more within AOTAutograd's wrapper, if that may matter.

    It may if the graph writes to its inputs, since AOTAutograd copies the new values, and if it saves so
    little that some microseconds per call may cancel the gain.
    """
    traced, found, policy = this.traced, this.found, Policy.of(this.options.timing)
    assert traced is not None, "it was traced, or there were no rewritten graph"
    if found is None or found.timing is None:  # it came from memory, or was not timed
        return
    if not traced.mutated and policy.is_decided_without_wrapper(found.timing):
        return
    with this.journal.phase("timing"):
        is_faster, timing = faster.against(
            original,
            run,
            lambda: traced.own_inputs()[traced.num_lifted :],
            policy,
            settle=registry.row(found.options.executor).needs_settling,
        )
    this.journal.add_timing(timing)
    if not is_faster:
        this.keep_original(not_faster(timing, policy))


def save_report(report: Report, options: DebugOptions, on_error: OnError) -> None:
    """Write the report next to the graphs of this compilation, if the user asked for files."""
    folder = folder_of(report.graph_hash, options)
    if folder is None or "save" not in report.phases_ms:
        return
    try:
        (folder / "report.json").write_text(report.to_json(), encoding="utf-8")
        report.save(folder / "report.html")
    except OSError as error:
        if on_error == "raise":
            raise
        warn_of(error)


def _answer(
    original: Callable[..., Any], traced: Traced, options: Options, this: _Compilation
) -> Compiled | None:
    """Return the compiled graph, from memory or newly built; None if the original is kept."""
    this.key = f"{traced.content} {options}" if _is_shared(options) else ""
    known = MEMORY.find(this.key)
    if known is not None:
        this.compiled, this.known = known
        this.status = this.known.status
        return this.compiled
    reason = refusal(options, traced) if options.executor == "by_calls" else None
    if reason is not None:
        options = dataclasses.replace(options, executor="auto")
        this.status.by_calls = f"off: {reason}"
    found, rest = _rewrite(original, traced, options, this.journal)
    this.found, this.journal = found, found.journal
    if found.run is None and rest is None:
        this.keep_original(found.reason or "")
        return None
    status = this.status = Status(by_calls=this.status.by_calls)
    if options.executor == "by_calls" and rest is None:
        status.by_calls = "an earlier process has chosen"
    if found.run is None:
        status.kept, status.fallback_reason = "undecided", found.reason
    else:
        status.kept, status.weight_sets, status.checked_sets = "rewritten", 1, int(options.verify)
        this.journal.add(**weights_facts(traced.inputs, traced.static, found.run))
        this.journal.add(calls=calls_of(found.run))
    aten, static, report = traced.aten, traced.static, this.journal.report()  # not the inputs of this call

    original_run = cast("Lowered", aten.forward)  # which evaluates nothing

    def note(error: Exception, args: Sequence[Any]) -> None:
        status.repro = repro_of(aten, args, static, options, report, error)

    this.compiled = Compiled(
        found.run or original_run,
        aten,
        status,
        options.on_error,
        options.verify,
        note,
        traced.num_added,
        found.lower,
    )
    if rest is not None:
        ByCalls(found, rest, this.compiled, original_run).begin()
    return this.compiled


def _is_shared(options: Options) -> bool:
    """Whether a compiled graph can be reused for the same graph with the same options.

    Not if the weights are baked in, nor if the plan is in a file, which may change, nor if its error was
    measured on other inputs, nor if modules are excluded: equal graphs may be of other modules.
    """
    is_exact = options.precision.max_error is None
    is_shared = options.lowering.weights != "frozen" and options.plan is None and is_exact
    return is_shared and not options.exclude


def _rewrite(
    original: Callable[..., Any], traced: Traced, options: Options, journal: Journal
) -> tuple[Attempt, Rest | None]:
    """Run the stages up to the choice of the executor, then an attempt with each promising one.

    Returns:
        The best attempt, and what calls may replace it with.
    """
    if options.executor == "by_calls":
        traced = with_own_inputs(traced)
    with journal.phase("capture"):
        captured = capture_traced(traced, options.exclude)
        journal.add(opaque=captured.opaque)
        for name in unmatched(traced.aten, options.exclude):
            journal.add_note(f"exclude: no operator, no substitution and no module of this graph is {name!r}")
    with journal.phase("read"):
        job = Job(traced, captured, read_captured(captured))
    original = _takes_lifted(original, traced.num_lifted)
    contestant = Contestant(job, original, traced.own_inputs, options.search.seed)
    attempts, rest = functools.partial(attempt, contestant), None
    if options.executor == "by_calls":
        found, rest = choose_at_first(attempts, contestant, options, journal)
        return found, None if found.timing is None else rest
    found = choose(attempts, contestant, options, journal)
    built = found.rejected if found.run is None else found.run
    if options.timing.measure_parts and built is not None:
        with found.journal.phase("measure parts"):
            measure_parts(contestant, found, built)
    return dataclasses.replace(found, rejected=None), None


def _takes_lifted(original: Callable[..., Any], num_lifted: int) -> Callable[..., Any]:
    """Wrap Dynamo's graph to take the inputs of the ATen graph."""
    if num_lifted == 0:
        return original
    return lambda *args: original(*args[num_lifted:])
