"""A run of the dissertation's figures that measures: several forms of one graph on one executor, in turns.

They run in a process of their own with one thread, since threads of one runtime slow another one down. Beside
the time on the clock stands the time that the process had a processor: on a machine with other work only that
says what a call costs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchrlopt.errors import RlOptError
from torchrlopt.machine.profiling import trace, variant
from training.device.prices import typical_prices
from training.experiments.dissertation.libraries import OURS, library
from training.experiments.dissertation.search_run import SearchRun, prices
from training.experiments.graphs_of_paper import graph_of, module_of
from training.experiments.own_process import in_own_process
from training.experiments.runs import MEASURED, Run, versions

AS_WRITTEN = "as written"  # the module itself, called by PyTorch
UNOPTIMISED = "unoptimised"  # the graph as it is, on the executor
_THREADS = 1


@dataclasses.dataclass(frozen=True)
class Form:
    """What is measured: a graph that a search leads to.

    Attributes:
        title: of it.
        searcher: of the core; "walk" for random steps from a part of greedy's plan; empty for none.
        rules: see `libraries`.
        steps: of the search.
        seed: of a walk.
    """

    title: str
    searcher: str = ""
    rules: str = OURS
    steps: int = 0
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Times:
    """What was measured of one form.

    Attributes:
        title: of the form.
        graph_hash: of its graph.
        metrics: predicted, see `_C.CostModel.metrics`.
        num_steps: of the plan.
        cpu_ms: processor time of each call, in order.
        wall_ms: the same on the clock.
        call_mb: most that tensors take during a call beyond what they took before it, in MB of 10^6 bytes;
            None where it is not known.
        reason: why there are no times; else empty.
    """

    title: str
    graph_hash: str
    metrics: dict[str, float]
    num_steps: int
    cpu_ms: list[float]
    wall_ms: list[float]
    call_mb: float | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Measured:
    """All forms of a graph, in the order of the run; those of one graph hash were measured once."""

    forms: list[Times]

    def times(self, title: str) -> Times:
        """Of one form, by its title."""
        return next(each for each in self.forms if each.title == title)


@dataclasses.dataclass(frozen=True)
class MeasuredRun(Run[Measured]):
    """See `Run`.

    Attributes:
        graph: of `graphs_of_paper.GRAPHS`.
        executor: that runs it.
        forms: that take turns.
        calls: timed calls of each.
    """

    graph: str
    executor: str
    forms: tuple[Form, ...]
    calls: int

    @property
    def name(self) -> str:
        """See `Run`."""
        rules = sorted({library(form.rules).hash[:8] for form in self.forms})
        forms = hashlib.sha256(repr(self.forms).encode()).hexdigest()[:8]
        return (
            f"measured-{self.graph}-{self.executor}-{self.calls}x{len(self.forms)}-{forms}-{'-'.join(rules)}"
        )

    @property
    def beside(self) -> str:
        """See `Run`."""
        return f"{typical_prices(self.executor).to_json()} {versions(*MEASURED)}"

    @property
    def is_measurement(self) -> bool:
        """See `Run`."""
        return True

    def make(self, tell: Callable[[], None]) -> Measured:
        """See `Run`."""
        found = in_own_process(measure, self)
        tell()
        return found

    def read(self, kept: Mapping[str, Any]) -> Measured:
        """See `Run`."""
        return Measured([Times(**each) for each in kept["forms"]])


def measure(run: MeasuredRun) -> Measured:
    """Measure all forms in this process, which should be a new one."""
    torch.set_num_threads(_THREADS)
    module, inputs = module_of(run.graph)
    (source,) = trace(module, inputs)
    cost = prices(run.executor, 0)
    found: list[Times] = []
    calls: dict[str, Callable[[], object]] = {}
    for form in run.forms:
        graph, num_steps = _graph_of(form, run)
        own = f"{graph.hash():016x}" if form.title != AS_WRITTEN else AS_WRITTEN
        times = Times(form.title, own, cost.metrics(graph), num_steps, [], [])
        if own not in calls:
            try:
                if form.title == AS_WRITTEN:
                    calls[own] = lambda: module(*inputs)
                else:
                    lowered = source.lower(graph, run.executor)
                    calls[own] = lambda lowered=lowered: lowered(*source.inputs)  # type: ignore[misc]
                with torch.no_grad():
                    calls[own]()
            except RlOptError as error:
                calls.pop(own, None)
                times = dataclasses.replace(times, reason=str(error).splitlines()[0])
        found.append(times)
    with torch.no_grad():
        samples = _in_turns(calls, run.calls)
        memory = {own: _call_mb(call) if run.executor == "eager" else None for own, call in calls.items()}
    return Measured(
        [
            dataclasses.replace(
                each,
                cpu_ms=[cpu for cpu, _ in samples.get(each.graph_hash, [])],
                wall_ms=[wall for _, wall in samples.get(each.graph_hash, [])],
                call_mb=memory.get(each.graph_hash),
            )
            for each in found
        ]
    )


def _graph_of(form: Form, run: MeasuredRun) -> tuple[Any, int]:
    """The graph of a form, and how many steps led to it."""
    if not form.searcher:
        return graph_of(run.graph), 0
    is_walk = form.searcher == "walk"
    search = SearchRun(
        run.graph, "greedy" if is_walk else form.searcher, form.steps, rules=form.rules, executor=run.executor
    )
    found = search.search(search.steps)
    if is_walk:
        return variant(graph_of(run.graph), library(form.rules), found["steps"], form.seed, form.steps)
    return found["graph"], len(found["steps"])


def _in_turns(calls: Mapping[str, Callable[[], object]], count: int) -> dict[str, list[tuple[float, float]]]:
    """Milliseconds of processor and of the clock, of `count` calls of each, in turns."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    order: Sequence[str] = list(calls)
    for number in range(count):
        for place in range(len(order)):
            name = order[(place + number) % len(order)]
            calls[name]()  # brings its own weights back into the caches
            wall, cpu = time.perf_counter(), time.process_time()
            calls[name]()
            spent = time.process_time() - cpu, time.perf_counter() - wall
            samples[name].append((1e3 * spent[0], 1e3 * spent[1]))
    return samples


def _call_mb(call: Callable[[], object]) -> float:
    """Most that tensors take at one time of a call beyond what they took before it.

    Of the allocations that PyTorch tells its profiler: what is resident would not do, since executors keep
    blocks from one call to the next.
    """
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        call()
    results = profile.profiler.kineto_results if profile.profiler is not None else None
    events = [each for each in results.events() if each.name() == "[memory]"] if results is not None else []
    in_use = itertools.accumulate(each.nbytes() for each in sorted(events, key=lambda each: each.start_ns()))
    return max(in_use, default=0) / 1e6
