"""Measure graphs of the curriculum and of the suite on an executor: the data of the latency model.

The base graph, greedy's, those of alternative plans and some after random substitutions run alternately, in a
separate process per executor, because the threads of one runtime slow another one down. Times from rounds in
which the process had to wait for processors are discarded.
`python -m training.papers.latency.collect --help`.
"""

from __future__ import annotations

import gc
import itertools
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import torch
import typer

from baselines.models import NAMES, build
from torchrlopt import _C, executor_table
from torchrlopt.errors import RlOptError
from torchrlopt.executors.registry import Lowered
from torchrlopt.machine import contention
from torchrlopt.machine.cost import MachineProfile
from torchrlopt.machine.device import cpu_name
from torchrlopt.machine.profiling import Source, trace, variant
from torchrlopt.machine.profiling.garbage import no_garbage_collection
from torchrlopt.options import Options
from torchrlopt.plan import search
from torchrlopt.plan.alternatives import alternatives
from torchrlopt.substitutions import load_library
from training.graphs.curriculum import Split
from training.papers.latency.dataset import COLUMNS, append, read
from training.papers.latency.subjects import subject
from training.progress import progress_bar

SPLITS: tuple[Split | Literal["suite"], ...] = ("train", "held_out", "test", "suite")

_ENOUGH = 9  # undisturbed samples per graph
_LEAST = 6
_PATIENCE = 3.0  # time limit as a multiple of the seconds, to get undisturbed samples
_MAX_WALK = 24
_POOL = 2  # alternative plans are drawn from a pool this many times as large
_FIRST_SEED = 5_000_000  # of the walks; a seed range that nothing else uses


def main(
    out: Annotated[Path, typer.Argument(help="File of JSON lines; a run goes on where the file ends.")],
    executor: Annotated[str, typer.Option(help="One executor for one run.")] = "eager",
    split: Annotated[str, typer.Option(help=f"One of: {', '.join(SPLITS)}.")] = "train",
    bases: Annotated[int, typer.Option(min=1, help="Base graphs; of the suite, all models.")] = 300,
    variants: Annotated[int, typer.Option(min=1, help="Graphs of each base, besides itself.")] = 10,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of running for each base.")] = 4.0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the kernels.")] = 1,
    most_ms: Annotated[float, typer.Option(help="Bases of which a run takes longer are left out.")] = 60.0,
) -> None:
    """Measure base graphs and variants of them.

    Example: python -m training.papers.latency.collect runs/latency.jsonl --executor onnxruntime
    """
    if executor not in executor_table.names():
        raise typer.BadParameter(f"no executor {executor!r}; one of: {', '.join(executor_table.names())}")
    if split not in SPLITS:
        raise typer.BadParameter(f"no split {split!r}; one of: {', '.join(SPLITS)}")
    torch.set_num_threads(threads)
    out.parent.mkdir(parents=True, exist_ok=True)
    done = (
        set(read([out])[["base", "executor"]].itertuples(index=False, name=None)) if out.exists() else set()
    )
    names = list(NAMES) if split == "suite" else [str(key) for key in range(bases)]
    skipped = 0
    with progress_bar() as progress:
        bar = progress.add_task(f"{split} on {executor}", total=len(names))
        for name in names:
            base = f"{split} {name}"
            if (base, executor) not in done:
                try:
                    append(out, _measured(base, executor, variants, seconds, threads, most_ms))
                except RlOptError as error:
                    skipped += 1
                    progress.console.print(f"{base} is left out: {error}")
                torch._dynamo.reset()
                gc.collect()
            progress.advance(bar)
    print(f"{len(names) - skipped} bases in {out}, {skipped} left out")


def _subject(base: str) -> tuple[tuple[str, ...], Source]:
    split, name = base.split()
    if split == "suite":
        return (name,), trace(*build(name))[0]
    sample, source = subject(int(name), cast(Split, split))
    return sample.families, source


def _measured(
    base: str, executor: str, variants: int, seconds: float, threads: int, most_ms: float
) -> list[dict[str, Any]]:
    """The rows of one base graph; none if a run takes too long or greedy finds nothing to do.

    Raises:
        RlOptError: the graph cannot be traced, or the executor does not run it.
    """
    families, source = _subject(base)
    graphs = _graphs(source, executor, variants)
    if not graphs:
        return []
    lowered = [source.lower(graph, executor) for graph, _ in graphs]
    samples = run_in_turns(lowered, source, seconds, most_ms)
    rows = []
    for (graph, steps), (times_us, is_calm) in zip(graphs, samples, strict=bool(samples)):
        us, again_us = (_lower_quartile(times_us[half::2]) for half in (0, 1))
        noise = _noise(times_us[0::2])
        who = (base, families, executor, threads, cpu_name(), steps)
        times = (round(us, 2), round(again_us, 2), round(noise, 4), is_calm, graph.text())
        rows.append(dict(zip(COLUMNS, (*who, *times), strict=True)))
    return rows


def _lower_quartile(times_us: Sequence[float]) -> float:
    return statistics.quantiles(times_us, n=4, method="inclusive")[0]


def _noise(times_us: Sequence[float]) -> float:
    """Relative standard error of a lower quartile, assuming normally distributed times."""
    quartiles = statistics.quantiles(times_us, n=4, method="inclusive")
    return (quartiles[2] - quartiles[0]) / len(times_us) ** 0.5 / quartiles[0]


def _graphs(source: Source, executor: str, variants: int) -> list[tuple[_C.Graph, int]]:
    """The base, greedy's graph and distinct others, each with the number of steps that led to it.

    Empty if greedy's graph is the base: the scores expect it in second place.

    Four fifths of the others come from alternative plans, between which a search has to choose; the rest are
    some random steps away, where no plan leads.
    """
    original, library = source.program.graph, load_library()
    profile, options = MachineProfile(executor, "cpu"), Options(searcher="greedy", budget_ms=5000)
    plan = search.search(original, library, profile.cost_model(source.sizes), options)
    best = search.replay(original, library, plan)
    if best.hash() == original.hash():
        return []
    found = {original.hash(): (original, 0), best.hash(): (best, len(plan.steps))}
    others = alternatives(original, library, profile, source.sizes, options, plan)
    pool = list(itertools.islice(others, _POOL * variants))
    for other in random.Random(original.hash()).sample(pool, min(len(pool), variants * 4 // 5)):
        found.setdefault(other.graph.hash(), (other.graph, len(other.plan.steps)))
    for seed in itertools.islice(itertools.count(_FIRST_SEED), 4 * variants):
        if len(found) > variants:
            break
        graph, steps = variant(original, library, plan.steps, seed, _MAX_WALK)
        found.setdefault(graph.hash(), (graph, steps))
    return list(found.values())


def run_in_turns(
    lowered: Sequence[Lowered], source: Source, seconds: float, most_ms: float
) -> list[tuple[list[float], bool]]:
    """Time callables alternately on the same inputs.

    Args:
        lowered: what to run.
        source: has the inputs.
        seconds: approximate total time; up to three times as long if needed for undisturbed samples.
        most_ms: longest allowed run.

    Returns:
        For each callable its samples in microseconds, undisturbed ones if there are enough, and whether they
        are undisturbed. Empty if one run takes too long.
    """
    samples: list[list[tuple[float, bool]]] = [[] for _ in lowered]
    with torch.no_grad(), no_garbage_collection():
        for run in lowered:
            start = time.perf_counter()
            run(*source.inputs)
            run(*source.inputs)
            if (time.perf_counter() - start) * 500 > most_ms:
                return []
        begin = time.perf_counter()
        for number in itertools.count():
            spent = time.perf_counter() - begin
            calm = min(sum(is_calm for _, is_calm in own) for own in samples)
            if number >= _LEAST and (spent > _PATIENCE * seconds or (spent > seconds and calm >= _LEAST)):
                break
            if calm >= 5 * _ENOUGH:
                break
            for place in range(len(lowered)):
                which = (place + number) % len(lowered)
                lowered[which](*source.inputs)  # warms the caches with its own weights
                waited, start_ns = contention.waited_ns(), time.perf_counter_ns()
                lowered[which](*source.inputs)
                wall = time.perf_counter_ns() - start_ns
                is_calm = contention.is_calm(contention.waited_ns() - waited, wall)
                samples[which].append((wall / 1e3, is_calm))
    results = []
    for own in samples:
        calm_us = [us for us, is_calm in own if is_calm]
        enough = len(calm_us) >= _LEAST
        results.append((calm_us if enough else [us for us, _ in own], enough))
    return results


if __name__ == "__main__":
    typer.run(main)
