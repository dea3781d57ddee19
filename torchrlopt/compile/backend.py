"""The torch.compile backend, and the only place where the stages are composed.

capture -> read -> plan -> write -> lower -> check, each a line of `_Compilation._rewrite`. Whatever fails in
our own error tree, or does not pay, leaves the user with the graph that came in.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import onnx_ir
import torch

from torchrlopt.capture import Captured, aot, capture, whole_operators
from torchrlopt.capture.aten import content_key, device_of, reason_to_leave_alone, symbol_sizes
from torchrlopt.capture.sampling import generated_inputs, random_inputs
from torchrlopt.compile import autotune, check
from torchrlopt.errors import OptionsError, RlOptError, UnsupportedError
from torchrlopt.executors import registry
from torchrlopt.executors.lowering.onnx_to_aten import lower_model
from torchrlopt.onnx import files
from torchrlopt.onnx.program import Program
from torchrlopt.onnx.reader import read
from torchrlopt.onnx.standard import standardise
from torchrlopt.onnx.writer import write
from torchrlopt.options import Options
from torchrlopt.plan import search
from torchrlopt.plan.planning import Planned, Verified, make_plan, opaque_operators, verification_stamp
from torchrlopt.report import Report

logger = logging.getLogger("torchrlopt")


class _Compiled:
    """A rewritten graph in the calling convention of AOTAutograd, with its report."""

    _boxed_call = True

    def __init__(self, lowered: registry.Lowered, report: Report) -> None:
        self.lowered = lowered
        self.report = report

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        outputs = self.lowered(*args)
        args.clear()
        return outputs


class _Memory:
    """What this process has compiled, by content; emptied by `torch._dynamo.reset()`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # weak: a compiled graph lives as long as Dynamo's code for it, and so do its packed weights
        self.compiled: weakref.WeakValueDictionary[str, _Compiled] = weakref.WeakValueDictionary()
        self.kept_original: dict[str, Report] = {}
        self.serial = itertools.count()
        self.warned: set[str] = set()
        self.reports: deque[Report] = deque(maxlen=64)

    def clear(self) -> None:
        with self.lock:
            self.compiled.clear()
            self.kept_original.clear()
            self.warned.clear()
            self.reports.clear()


_memory = _Memory()


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
        gm, example_inputs, Options.from_dict(chosen | dict(options or {})), _memory.reports.append
    )


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
    compilation = _Compilation(gm, example_inputs, options)
    run = compilation.run()
    record(compilation.report)
    return run


def reset() -> None:
    """Forget everything kept in memory; called by `torch._dynamo.reset()`."""
    _memory.clear()


def reports() -> list[Report]:
    """Reports of the graphs most recently compiled through torch.compile, oldest first."""
    return list(_memory.reports)


rlopt.reset = reset  # type: ignore[attr-defined]  # Dynamo looks for it on the backend


class _Compilation:
    """One call of the backend: what is known about the graph, and the report that grows with it."""

    def __init__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Options) -> None:
        self.gm = gm
        self.example_inputs = list(example_inputs)
        self.options = options
        self.report = Report(searcher=options.searcher, executor=options.executor)
        self._saved: Path | None = None
        self._original: Callable[..., Any] = gm.forward  # takes the inputs of the ATen graph

    def run(self) -> Callable[..., Any]:
        """Trace and rewrite; Dynamo's graph where a stage fails and the user did not ask for the error."""
        if aot.records_gradients(self.gm, self.example_inputs):
            self._leave_training_alone()
            return self.gm.forward
        start = time.perf_counter()
        try:
            with ExitStack() as tracing:
                tracing.enter_context(whole_operators())

                def answer(aten: torch.fx.GraphModule, fakes: Sequence[Any]) -> _Compiled | None:
                    tracing.close()  # other compilers that run from here on see PyTorch as it is
                    return self._answer(aten, fakes)

                run = aot.trace(self.gm, self.example_inputs, answer, self._leave_training_alone)
        except (RlOptError, MemoryError) as error:
            if self.options.on_error == "raise":
                raise
            warn_of_fallback(error, self.report)
        self.example_inputs.clear()  # AOTAutograd may keep us, and must not keep them alive
        total_ms = (time.perf_counter() - start) * 1e3
        self.report.phases_ms["trace"] = total_ms - sum(self.report.phases_ms.values())
        if self._saved is not None:
            (self._saved / "report.json").write_text(self.report.to_json(), encoding="utf-8")
        return run if self.report.kept == "rewritten" else self.gm.forward

    def _leave_training_alone(self) -> None:
        logger.info("rlopt optimises inference graphs; this one records gradients and is left alone")
        self.report.fallback_reason = "the graph records gradients"

    def _answer(self, aten: torch.fx.GraphModule, fakes: Sequence[Any]) -> _Compiled | None:
        """The compiled graph from memory or anew; None where the original is kept."""
        static, mutated = aot.input_roles()
        weights = aot.lifted_weights()
        inputs, reason = aot.real_inputs([*weights, *self.example_inputs], fakes)
        reason = reason or reason_to_leave_alone(aten)
        if reason is not None:
            self.report.fallback_reason = reason
            return None
        self._content = content_key(aten, static)
        key = f"{self._content} {self.options}"
        if self.options.weights == "frozen":  # the weights are baked in: not for another instance
            key += f" {next(_memory.serial)}"
        known = _memory.compiled.get(key)
        report = known.report if known is not None else _memory.kept_original.get(key)
        if report is not None:
            self.report = dataclasses.replace(report, phases_ms={}, is_cache_hit=True)
            return known
        inputs = [x.clone() if i in mutated else x for i, x in enumerate(inputs)]
        if weights:
            self._original = lambda *args: self.gm.forward(*args[len(weights) :])
        lowered = self._rewrite(aten, inputs, static)
        if lowered is None:
            _memory.kept_original[key] = self.report
            return None
        self.report.kept = "rewritten"
        compiled = _memory.compiled[key] = _Compiled(lowered, self.report)
        return compiled

    def _rewrite(
        self, aten: torch.fx.GraphModule, inputs: list[Any], static: Sequence[int]
    ) -> registry.Lowered | None:
        """The pipeline. The rewritten graph, or None where the original is kept (the report says why)."""
        phase = functools.partial(timed, self.report)
        with phase("capture"):
            captured = capture(aten, inputs, static)
            self.report.opaque = captured.opaque
        with phase("read"):
            program = read(captured.model, captured.static_inputs | captured.constants.keys())
        attempt = functools.partial(self._attempt, aten, inputs, static, captured, program)
        if self.options.executor == "default":
            return self._first_that_works(attempt, registry.defaults(device_of(aten).type))
        if self.options.executor != "auto":
            return attempt(self.options, self.report)
        duel = functools.partial(
            check.measure, inputs=inputs, limit_ms=self.options.measure_ms, min_gain=0.0, settle=True
        )
        lowered, self.report = autotune.fastest(
            attempt, duel, self.options, self.report, search.graph_hash(program.graph), device_of(aten)
        )
        return lowered

    def _first_that_works(self, attempt: autotune.Attempt, names: Sequence[str]) -> registry.Lowered | None:
        """The graph in the first executor that takes it; what the last one raises is raised."""
        base = self.report
        for name in names:
            options = dataclasses.replace(self.options, executor=cast(Any, name))
            self.report = dataclasses.replace(base, executor=name, phases_ms=dict(base.phases_ms))
            try:
                return attempt(options, self.report)
            except RlOptError as error:
                if name == names[-1]:
                    raise
                logger.info("rlopt goes on without %s: %s", name, error)
        raise AssertionError("eager PyTorch is always there to try")

    def _attempt(
        self,
        aten: torch.fx.GraphModule,
        inputs: list[Any],
        static: Sequence[int],
        captured: Captured,
        program: Program,
        options: Options,
        report: Report,
    ) -> registry.Lowered | None:
        """The rewritten graph in one executor, or None where the original is kept."""
        phase = functools.partial(timed, report)
        with phase("plan"):
            planned = make_plan(program, options, device_of(aten), report, symbol_sizes(aten, inputs))
        with phase("write"):
            model = write(dataclasses.replace(program, graph=planned.graph))
        with phase("lower"):
            lowered = registry.get(options.executor).lower(model, captured, options)
        self._save(captured, model, planned.graph_hash)
        with phase("check"):
            is_kept = self._check(aten, lowered, inputs, static, planned, options, report)
        return lowered if is_kept else None

    def _check(
        self,
        aten: torch.fx.GraphModule,
        lowered: registry.Lowered,
        inputs: list[Any],
        static: Sequence[int],
        planned: Planned,
        options: Options,
        report: Report,
    ) -> bool:
        """Right and fast enough? Raises VerificationError where it is wrong."""
        if options.verify:
            report.numerical_error = self._verify(aten, lowered, inputs, static, planned, options)
        if options.measure and planned.timing is None:
            planned.is_stored = False
            planned.timing = check.measure(
                self._original,
                lowered,
                inputs,
                options.measure_ms,
                options.min_gain,
                settle=options.executor != "eager",
            )
        return planned.settle(options, report)

    def _verify(
        self,
        aten: torch.fx.GraphModule,
        lowered: registry.Lowered,
        inputs: list[Any],
        static: Sequence[int],
        planned: Planned,
        options: Options,
    ) -> float:
        """The error; one that does not hang on the user's tensors is remembered."""
        stamp, known = verification_stamp(self._content), planned.verified
        if known is not None and known.stamp == stamp:
            check.run(lowered, inputs)
            return known.error
        fresh = random_inputs(inputs, static, options.seed)
        # Elsewhere the first call fixes the weights, or another set of them means another compilation.
        holds_for_all = options.weights != "frozen" and options.executor == "eager"
        if not holds_for_all:
            fresh = [inputs[i] if i in static else x for i, x in enumerate(fresh)]
        try:
            error = check.verify(aten, aten.forward, lowered, fresh)
        except UnsupportedError:  # the model is particular about its inputs: the user's own, then
            return check.verify(aten, aten.forward, lowered, inputs)
        if holds_for_all:
            planned.is_stored, planned.verified = False, Verified(stamp, error)
        return error

    def _save(self, captured: Captured, model: onnx_ir.Model, graph_hash: str) -> None:
        """Leave both graphs where the user asked for them."""
        if self.options.save_dir is not None:
            self._saved = Path(self.options.save_dir) / graph_hash[:12]
            self._saved.mkdir(parents=True, exist_ok=True)
            files.save(captured.model, self._saved / "before.onnx")
            files.save(model, self._saved / "after.onnx")


def warn_of_fallback(error: RlOptError | MemoryError, report: Report) -> None:
    """Record why the original is kept, and warn once per cause."""
    report.kept = "original"
    report.fallback_reason = str(error) or type(error).__name__
    cause = f"{type(error).__name__}: {getattr(error, 'what', error)}"
    with _memory.lock:
        is_new = cause not in _memory.warned
        _memory.warned.add(cause)
    if is_new:
        logger.warning("rlopt keeps the original graph: %s", error)


def rewrite_file(path_in: Path, path_out: Path, options: Options) -> Report:
    """Read an ONNX file, rewrite it and write it with standard operators; see `optimise_onnx`."""
    if options.executor == "default":
        options = dataclasses.replace(options, executor="eager")
    report = Report(searcher=options.searcher, executor=options.executor)
    phase = functools.partial(timed, report)
    with phase("load"):
        model = source = files.load(path_in)
    try:
        with phase("read"):
            program = read(source)
            report.opaque = opaque_operators(program)
        with phase("plan"):
            planned = make_plan(program, options, torch.device("cpu"), report)
            planned.settle(dataclasses.replace(options, measure=False), report)
        with phase("write"):
            model = write(dataclasses.replace(program, graph=planned.graph))
            standardise(model)
        with phase("check"):
            if options.verify:
                report.numerical_error = _verify_model(source, model, options)
        report.kept = "rewritten"
    except (RlOptError, MemoryError) as error:
        if options.on_error == "raise":
            raise
        warn_of_fallback(error, report)
        model = source
    with phase("save"):
        files.save(model, path_out)
    return report


def _verify_model(source: onnx_ir.Model, model: onnx_ir.Model, options: Options) -> float:
    """Compare both models in the eager executor, on random inputs."""
    aten = lower_model(source)
    inputs = generated_inputs(aten, options.seed)
    return check.verify(aten, aten.forward, lower_model(model).forward, inputs)


@contextmanager
def timed(report: Report, name: str) -> Iterator[None]:
    """Add the wall time of the block to the report's phases."""
    start = time.perf_counter()
    try:
        yield
    finally:
        report.phases_ms[name] = report.phases_ms.get(name, 0.0) + (time.perf_counter() - start) * 1e3
