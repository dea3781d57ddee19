"""The torch.compile backend, and the place where the stages are composed.

trace -> capture -> read -> (plan -> write -> lower -> check, for each executor that is tried): the lines of
`compile_graph`, `_rewrite` and `attempt.attempt`. Whatever fails in our own error tree, or does not pay,
leaves the user with the graph that came in.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchrlopt.capture.job import Job, capture_traced, read_captured
from torchrlopt.capture.trace import RECORDS_GRADIENTS, Traced, trace
from torchrlopt.compile.attempt import Attempt, Contestant, attempt, folder_of, timed
from torchrlopt.compile.choice import choose
from torchrlopt.compile.memory import MEMORY, Compiled, keep_original
from torchrlopt.errors import OptionsError, RlOptError
from torchrlopt.options import Options
from torchrlopt.report import Report

logger = logging.getLogger("torchrlopt")

_serial = itertools.count()


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
        mode: "max-autotune" stands for `executor="auto"`; torch passes it when the user gives it.

    Returns:
        A callable that computes what `gm` computes.

    Raises:
        OptionsError: an option is unknown or ill-typed.
        RlOptError: a stage failed and `on_error="raise"`.
    """
    if mode not in (None, "max-autotune"):
        raise OptionsError(
            "torch.compile's mode= is none of this backend's",
            expected="max-autotune",
            got=mode,
            todo="use options={...}",
        )
    chosen = {"executor": "auto"} if mode is not None else {}
    return compile_graph(
        gm, example_inputs, Options.from_dict(chosen | dict(options or {})), MEMORY.reports.append
    )


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
        answer_ms: how long AOTAutograd waited for us.
    """

    report: Report
    answer_ms: float = 0.0


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    record: Callable[[Report], None],
) -> Callable[..., Any]:
    """Compile one of Dynamo's graphs.

    Args:
        gm: Dynamo's graph; not changed.
        example_inputs: real tensors and SymInts.
        options: the user's choices.
        record: is given the report.

    Returns:
        The rewritten graph behind AOTAutograd's wrapper where it is right and faster, else `gm` itself.
    """
    outcome = _Outcome(Report(searcher=options.searcher, executor=options.executor))

    def answer(traced: Traced) -> Compiled | None:
        start = time.perf_counter()
        try:
            return _answer(gm, traced, options, outcome)
        finally:
            outcome.answer_ms = (time.perf_counter() - start) * 1e3

    def leave(reason: str) -> None:
        if reason == RECORDS_GRADIENTS:
            logger.info("rlopt optimises inference graphs; this one records gradients and is left alone")
        outcome.report.fallback_reason = reason

    start = time.perf_counter()
    run = None
    try:
        run = trace(gm, example_inputs, answer, leave)
    except (RlOptError, MemoryError) as error:
        if options.on_error == "raise":
            raise
        keep_original(error, outcome.report)
    report = outcome.report
    report.phases_ms["trace"] = (time.perf_counter() - start) * 1e3 - outcome.answer_ms
    folder = folder_of(report.graph_hash, options)
    if folder is not None and "save" in report.phases_ms:  # beside the graphs of this compilation
        (folder / "report.json").write_text(report.to_json(), encoding="utf-8")
    record(report)
    return run if run is not None and report.kept == "rewritten" else gm.forward


def _answer(gm: torch.fx.GraphModule, traced: Traced, options: Options, outcome: _Outcome) -> Compiled | None:
    """The compiled graph, from memory or anew; None where the original is kept."""
    key = f"{traced.content} {options}"
    if options.weights == "frozen":  # the weights are baked in: not for another instance
        key += f" {next(_serial)}"
    known = MEMORY.find(key)
    if known is not None:
        outcome.report = dataclasses.replace(known[1], phases_ms={}, is_cache_hit=True)
        return known[0]
    lowered, outcome.report = _rewrite(gm, traced, options, outcome.report)
    if lowered is not None:
        outcome.report.kept = "rewritten"
    if lowered is None and options.weights == "frozen":
        return None  # nobody will ask for this key again
    return MEMORY.keep(key, lowered, outcome.report)


def _rewrite(gm: torch.fx.GraphModule, traced: Traced, options: Options, report: Report) -> Attempt:
    """The stages up to the choice of the executor, then an attempt with each that is worth one."""
    with timed(report, "capture"):
        captured = capture_traced(traced)
        report.opaque = captured.opaque
    with timed(report, "read"):
        job = Job(traced, captured, read_captured(captured))
    contestant = Contestant(job, _takes_lifted(gm, traced.num_lifted), traced.own_inputs())
    return choose(functools.partial(attempt, contestant), contestant, options, report)


def _takes_lifted(gm: torch.fx.GraphModule, num_lifted: int) -> Callable[..., Any]:
    """Dynamo's graph, called with the inputs of the ATen graph."""
    if num_lifted == 0:
        return gm.forward
    return lambda *args: gm.forward(*args[num_lifted:])
