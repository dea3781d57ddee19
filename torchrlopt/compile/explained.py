"""What a report says besides the verdict: calls of the graph, the worth of each part of the gain."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from importlib import metadata

import torch

from torchrlopt import executor_table
from torchrlopt.compile import fallback
from torchrlopt.compile.attempt import Attempt
from torchrlopt.compile.contestant import Contestant, keys_of, lowered_from, written
from torchrlopt.executors import registry
from torchrlopt.executors.eager.executor import EXECUTOR, EagerCallable
from torchrlopt.executors.eager.inventory import inventory
from torchrlopt.executors.eager.profile import profile
from torchrlopt.executors.registry import Lowered
from torchrlopt.judge import timing
from torchrlopt.judge.timing import Callee
from torchrlopt.machine.device import describe
from torchrlopt.options import Options
from torchrlopt.plan.planning import Planned, make_plan
from torchrlopt.report import Calls, Contribution, Environment, Profile, TimedCall
from torchrlopt.report.drawing import Record
from torchrlopt.report.parts import ALL, KERNELS, PLAN, RUNTIME

_BRIEF_MS = 1.0  # no graph is timed in less than two rounds
_ROUNDS = 10  # at least, however long calls are: lower quartiles of three say little


def calls_of(lowered: Lowered) -> Calls | None:
    """Return the calls of a lowered graph, for the report; None if another runtime hides them."""
    if not isinstance(lowered, EagerCallable):
        return None
    found = inventory(lowered.main.graph)
    others = found.others + found.to_channels_last + found.restored
    return Calls(found.packed, found.plain, others, lowered.num_prepared)


def environment_of(options: Options, device: torch.device) -> Environment:
    """Describe this machine and the user's options, for the report."""
    found, defaults = describe(device), Options().as_dict()
    runtimes = [executor_table.BASELINE, options.executor, *registry.preferred(device.type)]
    return Environment(
        str(found["name"]),
        int(found["threads"]),
        {
            "torch": torch.__version__,
            "torchrlopt": metadata.version("torchrlopt"),
            **{name: registry.version(name) for name in runtimes if registry.version(name)},
        },
        {
            name: value if isinstance(value, str | int | float | None) else str(value)
            for name, value in options.as_dict().items()
            if value != defaults[name]
        },
        time.strftime("%Y-%m-%d %H:%M"),
    )


def measure_parts(contestant: Contestant, found: Attempt, built: Lowered) -> None:
    """Measure what each part of the gain is worth, and the calls of the graph; record both in the journal.

    Parts are measured without lower precision, which is measured already.
    """
    options, journal, so_far = found.options, found.journal, found.journal.report()
    run = built if found.lower is None else found.lower.exact()
    planned = make_plan(contestant.subject, options, so_far.plans)
    part = KERNELS if isinstance(run, EagerCallable) else RUNTIME
    others: dict[str, tuple[Callable[[], Callee], Lowered]] = {
        ALL: (lambda: contestant.original, built),
        PLAN: (functools.partial(_unplanned, contestant, options), run),
        part: (functools.partial(_plain, contestant, planned, options), run),
    }
    split: list[Contribution] = []
    for name, (build, own) in others.items():
        if name == PLAN and not so_far.steps:
            after_ms = split[-1].with_ms if split else 0.0
            split.append(Contribution(PLAN, after_ms, after_ms))
            continue
        try:
            split.append(_measured(name, build(), own, contestant, options))
        except fallback.recoverable_errors(options.on_error) as error:
            fallback.log_traceback(error)
            journal.add_note(f"what the {name} is worth was not measured: {fallback.described(error)}")
    split += so_far.split
    journal.add(split=tuple(split), calls=calls_of(built))
    if isinstance(built, EagerCallable):
        try:
            journal.add(profiles=(_profile(built, contestant, planned, so_far.records[0], options),))
        except fallback.recoverable_errors(options.on_error) as error:
            journal.add_note(f"calls were not timed one by one: {fallback.described(error)}")


def _unplanned(contestant: Contestant, options: Options) -> Lowered:
    graph = contestant.job.program.graph
    return lowered_from(written(graph, contestant.job), graph, contestant, options)


def _plain(contestant: Contestant, planned: Planned, options: Options) -> Lowered:
    model = written(planned.graph, contestant.job)
    return EXECUTOR.lower(model, contestant.job.captured, options.lowering, is_plain=True)


def _measured(
    part: str, without: Callee, run: Callee, contestant: Contestant, options: Options
) -> Contribution:
    settle = registry.row(options.executor).needs_settling
    time_both = functools.partial(timing.measure, without, run, contestant.inputs, settle=settle)
    # A verdict needs few samples, a factor many: whether the gain is above a rough one stays open to the end.
    rough = time_both(_BRIEF_MS, 0.0)
    limit_ms = max(options.timing.measure_ms, _ROUNDS * (rough.before_ms + rough.after_ms))
    found = time_both(limit_ms, rough.gain, is_warm=True)
    return Contribution(part, found.before_ms, found.after_ms, found.spread, found.is_calm)


def _profile(
    run: EagerCallable, contestant: Contestant, planned: Planned, record: Record, options: Options
) -> Profile:
    timed, drawing = profile(run, contestant.inputs, options.timing.measure_ms), record.draw()
    keys = keys_of(planned.graph, contestant.job.program)
    calls = []
    for name, nodes, us in timed.calls:
        own = tuple(keys[node] for node in nodes if node in keys)
        origins = [origin for key in own for origin in drawing.origins.get(key, ())]
        places = [drawing.sources[origin].place for origin in origins if origin in drawing.sources]
        module = drawing.modules_of(own[0]) if own else ""
        calls.append(TimedCall(name, us, own, module, places[0] if places else ""))
    return Profile(planned.graph_hash, timed.call_ms, tuple(calls), timed.num_rounds)
