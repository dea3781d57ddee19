"""Plans a model for each executor, with its prices, and prices eager PyTorch's plan with them too."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torchrlopt import _C
from torchrlopt.api.explain.views import ExecutorView, GraphView, Rewrite
from torchrlopt.capture.job import Job, make_job
from torchrlopt.capture.trace import Traced
from torchrlopt.compile.contestant import subject_of
from torchrlopt.compile.explained import environment_of
from torchrlopt.errors import RlOptError
from torchrlopt.executor_table import BASELINE
from torchrlopt.executors import registry
from torchrlopt.executors.eager.executor import EagerCallable
from torchrlopt.executors.eager.inventory import inventory
from torchrlopt.executors.registry import Lowered
from torchrlopt.judge import timing
from torchrlopt.machine.cost import device_model
from torchrlopt.onnx.writer import write
from torchrlopt.options import LoweringOptions, Options
from torchrlopt.plan import search
from torchrlopt.plan.planning import Planned, facts_of, make_plan, num_operators, profile_for
from torchrlopt.plan.record import proof_of
from torchrlopt.report import Journal, LeftOut, Report, Status
from torchrlopt.report.steps import meaning_of
from torchrlopt.substitutions import library_without, load_library
from torchrlopt.substitutions.load import subset_of

_LEAST_GAIN = 0.02  # of a rewrite, as a fraction of what it saves in eager PyTorch

Steps = Sequence[tuple[str, int]]


class Explainer:
    """Analyses graphs without changing them.

    Args:
        options: searcher and budgets of the plans.
        leave_out: also build and time the plans for eager PyTorch without each group of their steps.

    Attributes:
        graphs: the views, in order.
        reports: of the plans, by executor.
    """

    def __init__(self, options: Options, leave_out: bool = False) -> None:
        self._options = options
        self._leave_out = leave_out
        self.graphs: list[GraphView] = []
        self.reports: dict[str, list[Report]] = {}

    def look(self, traced: Traced) -> None:
        """Add a view of one graph, for every available executor."""
        job = make_job(traced, self._options.exclude)
        subject, eager = subject_of(job), self._for(BASELINE)
        base = make_plan(subject, eager)
        views = [
            self._executor(name, job, base.plan.steps) for name in registry.available(subject.device.type)
        ]
        self.graphs.append(
            GraphView(
                num_operators(subject.program.graph), job.captured.opaque, subject.device.type, tuple(views)
            )
        )

    def leave(self, reason: str) -> None:
        """Add a graph that is left alone, with the reason."""
        self.graphs.append(GraphView(0, (), "", (), reason))

    def _for(self, executor: str) -> Options:
        return dataclasses.replace(self._options, executor=executor)

    def _executor(self, name: str, job: Job, base: Steps) -> ExecutorView:
        options, subject = self._for(name), subject_of(job)
        graph, where = job.program.graph, subject.device
        planned = make_plan(subject, options)
        journal = Journal(executor=name, opaque=job.captured.opaque)
        journal.add(environment=environment_of(self._options, where))
        journal.add(**facts_of(subject, planned, options))
        report = journal.report(Status("planned"))
        prices, eager = (
            profile_for(each, where).cost_model(subject.sizes) for each in (options, self._for("eager"))
        )
        if self._leave_out and name == "eager":
            report = dataclasses.replace(report, left_out=left_out(job, eager, report, options))
        self.reports.setdefault(name, []).append(report)
        rewrites = sorted(_priced(graph, planned.plan.steps, prices).values(), key=lambda each: -each.gain_ms)
        view = ExecutorView(
            name,
            planned.plan.cost_before_ms,
            planned.plan.cost_after_ms,
            tuple(rewrites),
            () if name == "eager" else _needless(graph, base, prices, eager),
            *_price_differences(name, where.type),
            planned.plan.found_by,
            report.left_out,
        )
        return self._with_kernels(view, job, planned, options.lowering)

    def _with_kernels(
        self, view: ExecutorView, job: Job, planned: Planned, options: LoweringOptions
    ) -> ExecutorView:
        """Add the kernels of the lowered graph to the view, or the reason why it cannot be lowered."""
        try:
            model = write(dataclasses.replace(job.program, graph=planned.graph))
            lowered = registry.get(view.executor).lower(model, job.captured, options)
        except RlOptError as error:
            return dataclasses.replace(view, reason=str(error))
        if not isinstance(lowered, EagerCallable):
            return view
        found = inventory(lowered.main.graph)
        return dataclasses.replace(
            view,
            packed=found.packed,
            plain=found.plain,
            to_channels_last=found.to_channels_last,
            restored=found.restored,
        )


def _priced(graph: _C.Graph, steps: Steps, prices: _C.CostModel) -> dict[str, Rewrite]:
    """Return what each substitution of a sequence of steps saves at these prices."""
    library = load_library()
    found: dict[str, Rewrite] = {}
    before = prices.total(graph)["time_us"]
    for name, location in steps:
        graph = library.apply(graph, name, location)
        after = prices.total(graph)["time_us"]
        known = found.get(name)
        if known is None:
            meaning = meaning_of(library.family(name))
            known = Rewrite(name, 0, 0.0, proof_of(library, name), meaning)
        gain_ms = known.gain_ms + (before - after) / 1000
        found[name] = dataclasses.replace(known, count=known.count + 1, gain_ms=gain_ms)
        before = after
    return found


def _needless(
    graph: _C.Graph, steps: Steps, prices: _C.CostModel, eager: _C.CostModel
) -> tuple[Rewrite, ...]:
    """Return the rewrites that pay in eager PyTorch but not here."""
    here, there = _priced(graph, steps, prices), _priced(graph, steps, eager)
    return tuple(
        each
        for name, each in here.items()
        if there[name].gain_ms > 0 and each.gain_ms <= _LEAST_GAIN * there[name].gain_ms
    )


def _price_differences(executor: str, device_type: str) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the rates and overheads that differ from eager PyTorch's, and the same in words."""
    own, base = device_model(executor, device_type), device_model("eager", device_type)
    names = [name for name in dir(own) if not name.startswith("_")]
    found = {name: float(getattr(own, name)) for name in names if getattr(own, name) != getattr(base, name)}
    differences = (
        f"{name.replace('_', ' ')}: {value:g}, in eager PyTorch {float(getattr(base, name)):g}"
        for name, value in found.items()
    )
    return found, tuple(differences)


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
    library = library_without(options.exclude)
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
