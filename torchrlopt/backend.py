"""The torch.compile backend, and the only place where the stages are composed.

capture -> read -> plan -> write -> lower -> check, each a line of `_Compilation._rewrite`. Whatever fails in
our own error tree, or does not pay, leaves the user with the graph that came in.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx_ir
import torch

from torchrlopt import _C, aot, check, device, executors, search
from torchrlopt.aten_graph import content_key, device_of, reason_to_leave_alone
from torchrlopt.capture import Captured, capture
from torchrlopt.cost import cost_model
from torchrlopt.errors import OptionsError, RlOptError, SearchError
from torchrlopt.onnx_reader import read
from torchrlopt.onnx_writer import write
from torchrlopt.options import Options
from torchrlopt.program import Program
from torchrlopt.report import Report, ReportStep
from torchrlopt.store import PlanStore, default_directory, make_key
from torchrlopt.substitutions import load_library

logger = logging.getLogger("torchrlopt")

PLAN_FORMAT = 1  # raised when the meaning of a stored plan changes


class _Compiled:
    """A rewritten graph in the calling convention of AOTAutograd, with its report."""

    _boxed_call = True

    def __init__(self, lowered: executors.Lowered, report: Report) -> None:
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
        mode: not supported; torch passes it when the user gives it.

    Returns:
        A callable that computes what `gm` computes.

    Raises:
        OptionsError: an option is unknown or ill-typed.
        RlOptError: a stage failed and `on_error="raise"`.
    """
    if mode is not None:
        raise OptionsError(
            "torch.compile's mode= is not for this backend", got=mode, todo="use options={...}"
        )
    return compile_graph(gm, example_inputs, Options.from_dict(options or {}), _memory.reports.append)


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

    def run(self) -> Callable[..., Any]:
        """Trace and rewrite; Dynamo's graph where a stage fails and the user did not ask for the error."""
        if aot.records_gradients(self.gm, self.example_inputs):
            self._leave_training_alone()
            return self.gm.forward
        start = time.perf_counter()
        try:
            run = aot.trace(self.gm, self.example_inputs, self._answer, self._leave_training_alone)
        except (RlOptError, MemoryError) as error:
            if self.options.on_error == "raise":
                raise
            self._fall_back(error)
        total_ms = (time.perf_counter() - start) * 1e3
        self.report.phases_ms["trace"] = total_ms - sum(self.report.phases_ms.values())
        return run if self.report.kept == "rewritten" else self.gm.forward

    def _leave_training_alone(self) -> None:
        logger.info("rlopt optimises inference graphs; this one records gradients and is left alone")
        self.report.fallback_reason = "the graph records gradients"

    def _answer(self, aten: torch.fx.GraphModule, fakes: Sequence[Any]) -> _Compiled | None:
        """The compiled graph from memory or anew; None where the original is kept."""
        static, mutated = aot.input_roles()
        inputs, reason = aot.real_inputs(self.example_inputs, fakes)
        reason = reason or reason_to_leave_alone(aten)
        if reason is not None:
            self.report.fallback_reason = reason
            return None
        key = f"{content_key(aten, static)} {self.options}"
        known = _memory.compiled.get(key)
        report = known.report if known is not None else _memory.kept_original.get(key)
        if report is not None:
            self.report = dataclasses.replace(report, phases_ms={}, is_cache_hit=True)
            return known
        inputs = [x.clone() if i in mutated else x for i, x in enumerate(inputs)]
        lowered = self._rewrite(aten, inputs, static)
        if lowered is None:
            _memory.kept_original[key] = self.report
            return None
        self.report.kept = "rewritten"
        compiled = _memory.compiled[key] = _Compiled(lowered, self.report)
        return compiled

    def _rewrite(
        self, aten: torch.fx.GraphModule, inputs: list[Any], static: Sequence[int]
    ) -> executors.Lowered | None:
        """The pipeline. The rewritten graph, or None where the original is kept (the report says why)."""
        phase = functools.partial(timed, self.report)
        with phase("capture"):
            captured = capture(aten, inputs, static)
            self.report.opaque = captured.opaque
        with phase("read"):
            program = read(captured.model, captured.static_inputs)
        with phase("plan"):
            planned = make_plan(program, self.options, device_of(aten), self.report)
        with phase("write"):
            model = write(dataclasses.replace(program, graph=planned.graph))
        with phase("lower"):
            lowered = executors.get(self.options.executor).lower(model, captured, self.options)
        with phase("check"):
            is_kept = self._check(aten, lowered, inputs, static, planned)
        self._save(captured, model, planned.graph_hash)
        return lowered if is_kept else None

    def _check(
        self,
        aten: torch.fx.GraphModule,
        lowered: executors.Lowered,
        inputs: list[Any],
        static: Sequence[int],
        planned: Planned,
    ) -> bool:
        """Right and fast enough? Raises VerificationError where it is wrong."""
        if self.options.verify:
            fresh = check.random_inputs(inputs, static, self.options.seed)
            if self.options.weights == "frozen":  # the first call fixes the weights
                fresh = [inputs[i] if i in static else x for i, x in enumerate(fresh)]
            self.report.numerical_error = check.verify(aten, aten.forward, lowered, fresh)
        if self.options.measure and planned.verdict is None:
            timing = check.measure(
                self.gm.forward, lowered, inputs, self.options.measure_ms, self.options.min_gain
            )
            planned.is_stored = False
            planned.verdict = {
                "measured_before_ms": timing.before_ms,
                "measured_after_ms": timing.after_ms,
                "measured_gain": timing.gain,
                "measured_spread": timing.spread,
            }
        return planned.settle(self.options, self.report)

    def _save(self, captured: Captured, model: onnx_ir.Model, graph_hash: str) -> None:
        """Leave both graphs where the user asked for them."""
        if self.options.save_dir is None:
            return
        directory = Path(self.options.save_dir) / graph_hash[:12]
        directory.mkdir(parents=True, exist_ok=True)
        onnx_ir.save(captured.model, directory / "before.onnx")
        onnx_ir.save(model, directory / "after.onnx")
        (directory / "report.json").write_text(self.report.to_json(), encoding="utf-8")

    def _fall_back(self, error: RlOptError | MemoryError) -> None:
        """Record the error, and warn once per cause."""
        self.report.kept = "original"
        self.report.fallback_reason = str(error) or type(error).__name__
        cause = f"{type(error).__name__}: {getattr(error, 'what', error)}"
        with _memory.lock:
            is_new = cause not in _memory.warned
            _memory.warned.add(cause)
        if is_new:
            logger.warning("rlopt keeps the original graph: %s", error)


@dataclasses.dataclass
class Planned:
    """A plan for one graph with what is known about it.

    Attributes:
        graph: the rewritten graph.
        graph_hash: of the graph before the plan.
        key: under which the plan store keeps it; None with `cache=False`.
        plan: the steps.
        verdict: measured times of an earlier process, or of this one; None before.
        is_stored: whether the plan store has all of this already.
    """

    graph: _C.Graph
    graph_hash: str
    key: str | None
    plan: search.Plan
    verdict: dict[str, float] | None = None
    is_stored: bool = False

    def settle(self, options: Options, report: Report) -> bool:
        """Store plan and verdict, and say whether the rewritten graph is used."""
        if self.key is not None and not self.is_stored:
            plan_store().put(self.key, {"plan": self.plan.as_dict(), "verdict": self.verdict})
        if self.verdict is None or not options.measure:
            return True
        report.measured_before_ms = self.verdict["measured_before_ms"]
        report.measured_after_ms = self.verdict["measured_after_ms"]
        report.measured_spread = self.verdict["measured_spread"]
        gain = self.verdict["measured_gain"]
        if gain < options.min_gain:
            report.fallback_reason = (
                f"the rewritten graph is not faster: gain {gain:.3f}, min_gain {options.min_gain:g}"
            )
        return gain >= options.min_gain


def make_plan(program: Program, options: Options, where: torch.device, report: Report) -> Planned:
    """A plan from the store, or from a search.

    Args:
        program: the graph.
        options: searcher and budgets.
        where: the device of the graph's tensors.
        report: is given steps, costs and whether the store knew the plan.
    """
    library = load_library()
    graph_hash = search.graph_hash(program.graph)
    key = None
    found: Planned | None = None
    if options.cache:
        key = make_key(
            {
                "format": PLAN_FORMAT,
                "graph": graph_hash,
                "library": library.hash,
                "options": options.search_key(),
                "device": device.fingerprint(where),
            }
        )
        found = _stored_plan(program, library, graph_hash, key)
    report.is_cache_hit = found is not None
    if found is None:
        plan = search.search(program.graph, library, cost_model(options.executor, where.type), options)
        found = Planned(search.replay(program.graph, library, plan), graph_hash, key, plan)
    report.steps = tuple(
        ReportStep(name, location, cost_ms)
        for (name, location), cost_ms in zip(found.plan.steps, found.plan.costs_ms, strict=True)
    )
    report.cost_before_ms = found.plan.cost_before_ms
    report.cost_after_ms = found.plan.cost_after_ms
    report.num_nodes_before = _num_run_time_operators(program.graph)
    report.num_nodes_after = _num_run_time_operators(found.graph)
    return found


def _stored_plan(program: Program, library: _C.Library, graph_hash: str, key: str) -> Planned | None:
    """The stored plan, replayed; anything that does not fit is a miss."""
    entry = plan_store().get(key)
    if entry is None:
        return None
    try:
        plan = search.Plan.from_dict(entry["plan"])
        verdict = entry["verdict"]
        if verdict is not None:
            names = ("measured_before_ms", "measured_after_ms", "measured_gain", "measured_spread")
            verdict = {name: float(verdict[name]) for name in names}
        graph = search.replay(program.graph, library, plan)
    except (SearchError, KeyError, TypeError, ValueError) as error:
        logger.debug("a stored plan does not fit: %s", error)
        return None
    return Planned(graph, graph_hash, key, plan, verdict, is_stored=True)


def _num_run_time_operators(graph: _C.Graph) -> int:
    """Operators that depend on an input; expressions over weights are evaluated once."""
    nodes = (graph.node(node) for node in graph.topological_order())
    return sum(node["op"] != "Input" and not node["is_static"] for node in nodes)


def plan_store() -> PlanStore:
    """The plan store of this process."""
    return _store_in(default_directory())


@functools.cache
def _store_in(directory: Path) -> PlanStore:
    return PlanStore(directory)


@contextmanager
def timed(report: Report, name: str) -> Iterator[None]:
    """Add the wall time of the block to the report's phases."""
    start = time.perf_counter()
    try:
        yield
    finally:
        report.phases_ms[name] = report.phases_ms.get(name, 0.0) + (time.perf_counter() - start) * 1e3
