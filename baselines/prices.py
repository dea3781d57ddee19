"""Accuracy of prices and of decisions based on them: `python -m baselines.prices --help`."""

from __future__ import annotations

import copy
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
from scipy import stats
from torch import nn

import torchrlopt
from baselines.graphs import graph_of
from baselines.models import NAMES, build
from baselines.shared import plots, terminal
from baselines.shared.arguments import CsvFile, Models, PlotFile, Resume, choose, one
from baselines.shared.rounds import alternated_us
from baselines.shared.tables import Results, of, read, rich
from torchrlopt import _C, executor_table
from torchrlopt.executor_table import BASELINE
from torchrlopt.executors import registry
from torchrlopt.judge.policy import Policy
from torchrlopt.judge.timing import measure
from torchrlopt.machine.cost import ProfileStore, machine_profile
from torchrlopt.machine.profiling import profile, run_times, trace, variant
from torchrlopt.plan.runtime_prediction import price_ratio
from torchrlopt.substitutions import load_library

MEASURED, PREDICTED = ("variants", "regions", "plans"), "inductor"
_OPTIONS = {"min_gain": -10.0, "cache": False, "on_error": "raise"}
_MEASURE_S = 1.0  # seconds for each variant and the original, which alternate
_MIN_ROUNDS = 7
_FIRST_SEED = 1_000_000  # of the measured walks; those of the profile begin at 0
_MAX_STEPS = 64
_SLOW, _SLOW_PEER = "inductor", "inductor_freezing"
"""The executor whose time is predicted, and the peer that runs a model in it."""


def main(
    part: Annotated[
        str, typer.Argument(help=f"One of {', '.join(MEASURED)}, which measure, or {PREDICTED}.")
    ] = "variants",
    files: Annotated[list[Path] | None, typer.Argument(help="Of inductor: tables of comparisons.")] = None,
    models: Models = "all",
    executors: Annotated[str, typer.Option(help="Whose prices, separated by commas.")] = "eager",
    variants: Annotated[int, typer.Option(min=1, help="Variants, or plans, of each model.")] = 20,
    profile_s: Annotated[float, typer.Option(min=1, help="Seconds for the profile of each model.")] = 40.0,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of plans: of timing after the choice.")] = 8.0,
    rounds: Annotated[int, typer.Option(min=1, help="Of regions: calls of each; the least counts.")] = 60,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the kernels.")] = 2,
    csv: CsvFile = None,
    resume: Resume = False,
    plot: PlotFile = None,
) -> None:
    """Compare predicted with measured times.

    variants: the price of a model after random substitutions, from a profile of other graphs, and its time.
    Every second walk starts somewhere along greedy's plan; each variant alternates with the original graph,
    and the drift of the machine is divided out. regions: the share of its gain that a model keeps if the
    user's own operator stands in the middle of it. plans: the searched plan against the fastest of several
    that were timed, both timed once more after the choice. Each model runs in a separate process.

    inductor reads results of `baselines.compare`, in float32: its time as predicted from that of a runtime
    and the prices of both, which is how `executor="auto"` decides to leave it out.

    Example: python -m baselines.prices variants --models resnet18 --executors eager --csv prices.csv
    """
    part = one(part, (*MEASURED, PREDICTED), "part")
    console = terminal.console()
    if part == PREDICTED:
        console.print(rich("Predicted and measured", inductor_table(read(*(files or [])))))
        return
    named, chosen = choose(models, NAMES, "model"), choose(executors, executor_table.names(), "executor")
    terminal.announce(console, f"{threads} threads")
    results = Results("prices", csv, resume, batch=1, dtype="float32", threads=threads, setting=part)
    there = set(zip(results.frame.model, results.frame.peer, strict=True))
    how: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
        "variants": (measure_variants, (variants, profile_s)),
        "regions": (measure_regions, (rounds,)),
        "plans": (measure_plans, (variants, seconds)),
    }
    function, numbers = how[part]
    os.environ["OMP_NUM_THREADS"] = str(threads)
    for executor in chosen:
        for model in (each for each in named if (each, executor) not in there):
            # In a new process, so that one model's packed weights are freed before the next.
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                found = pool.submit(function, model, executor, threads, *numbers).result()
            for number, metric, value, unit, note in found:
                results.add(model, executor, metric, value, unit, round=number, note=note)
            results.save()
    for title, table in tables(results.frame).items():
        console.print(rich(title, table))
    if plot is not None and part == "variants":
        plots.scatter(points(results.frame).reset_index(), plot)


Found = list[tuple[int | None, str, float, str, str]]
"""Rows: number of the variant, metric, value, unit, note."""


def measure_variants(model: str, executor: str, threads: int, variants: int, profile_s: float) -> Found:
    """Profile one model, then predict and measure it after random substitutions; 0 is the original."""
    torch.set_num_threads(threads)
    library = load_library()
    source = trace(*build(model))[0]
    original = source.program.graph
    with tempfile.TemporaryDirectory() as folder:
        store = ProfileStore(Path(folder))
        profile(source, executor, library, store, profile_s)
        known = machine_profile(executor, source.device, store)
    cost = known.cost_model(source.sizes)
    base = source.lower(original, executor)
    most = min(_MAX_STEPS, max(8, original.num_operators // 2))
    plan = _C.search(original, library, cost, searcher="greedy", budget_ms=5000)["steps"]
    found: Found = []
    times_us = []
    for number in range(variants + 1):
        graph, steps = original, 0
        if number > 0:
            graph, steps = variant(original, library, plan, _FIRST_SEED + number, most)
        priced = cost.metrics(graph)
        runs = [base] if number == 0 else [base, source.lower(graph, executor)]
        times_us.append(run_times(runs, source.inputs, source.device, _MEASURE_S, _MIN_ROUNDS))
        found += [
            (number, "predicted", priced["time_us"] / 1e3, "ms", ""),
            (number, "steps", steps, "", ""),
            (number, "measured share", priced["measured_us"] / priced["time_us"], "", ""),
        ]
    base_us = float(np.median([each[0] for each in times_us]))
    for number, times in enumerate(times_us):
        found.append((number, "measured", times[-1] / times[0] * base_us / 1e3, "ms", ""))
    return found


@torch.library.custom_op("torchrlopt_baselines::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    """A cheap custom operator that no compiler knows."""
    return x * 0.5


@halved.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def measure_regions(model: str, executor: str, threads: int, rounds: int) -> Found:
    """Time a model in an executor and in eager PyTorch, without and with an unknown operator."""
    torch.set_num_threads(threads)
    plain, inputs = build(model)
    parted = copy.deepcopy(plain)
    blocks = blocks_of(parted)
    blocks[len(blocks) // 2].register_forward_hook(lambda module, args, result: _through(result))
    options = {**_OPTIONS, "executor": executor, "measure": False, "searcher": "greedy"}
    with torch.no_grad():
        ways: dict[str, Callable[..., Any]] = {
            "eager": plain,
            "ours": torchrlopt.optimise(plain, inputs, **options),
            "eager, with": parted,
            "ours, with": torchrlopt.optimise(parted, inputs, **options),
        }
        calls = {name: lambda way=way: way(*inputs) for name, way in ways.items()}
        for call in calls.values():
            call()
        times = alternated_us(calls, rounds, rest_s=0.005)
    return [(None, name, min(each) / 1e3, "ms", "") for name, each in times.items()]


def _through(result: Any) -> Any:
    if isinstance(result, tuple):
        return (halved(result[0]), *result[1:])
    return halved(result)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The most frequent blocks of the model, in order."""
    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList | nn.Sequential)]
    return list(max(lists, key=lambda each: (len(each), -sum(1 for _ in each.modules()))))


def measure_plans(model: str, executor: str, threads: int, plans: int, seconds: float) -> Found:
    """Time the searched plan against the fastest of several; the times that chose the latter flatter it."""
    torch.set_num_threads(threads)
    module, inputs = build(model)
    options: dict[str, Any] = {**_OPTIONS, "weights": "frozen", "executor": executor}
    with torch.no_grad():
        searched = torchrlopt.optimise(module, inputs, measure=False, **options)
        torch._dynamo.reset()
        chosen = torchrlopt.optimise(module, inputs, measure_plans=plans, **options)
        kept = [each.belief for each in chosen.report.measured_plans if each.is_kept]
        if not kept:
            return [(None, "gain", 0.0, "", "the searched one")]
        settle = registry.row(executor).needs_settling
        timed = measure(searched, chosen, lambda: inputs, seconds * 1e3, 0.0, settle=settle)
    note = kept[-1] if timed.is_calm else f"{kept[-1]}; the machine was busy"
    return [(None, "gain", timed.gain, "", note), (None, "spread", timed.spread, "", "")]


# ---- tables


def points(frame: pd.DataFrame) -> pd.DataFrame:
    """Predicted and measured ms of each variant, by executor and model."""
    keys = ["peer", "model", "round"]
    own = frame[frame.metric.isin(("predicted", "measured", "measured share", "steps"))]
    return own.pivot_table(index=keys, columns="metric", values="value", sort=False)


def variant_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Errors and rank correlations of the predictions, by model and executor, and by executor alone."""
    wide = points(frame)
    wide["error"] = (wide.predicted / wide.measured - 1).abs()
    wide["kendall"] = np.nan
    rows = []
    for (executor, model), own in wide.groupby(level=["peer", "model"], sort=False):
        wide.loc[own.index, "kendall"] = stats.kendalltau(own.predicted, own.measured).statistic
        rows.append({"executor": executor, "model": model, **_errors(own), **_correlation(own)})
    for executor, own in wide.groupby(level="peer", sort=False):
        within = wide.kendall[executor].groupby(level="model").first()
        spearman = stats.spearmanr(own.predicted, own.measured).statistic
        first = {"executor": executor, "model": f"all {len(within)}"}
        both = {"Spearman, all": f"{spearman:.3f}", "Kendall, median of the models": f"{within.median():.2f}"}
        rows.append({**first, **_errors(own), **both})
    return pd.DataFrame(rows).fillna("")


def _errors(own: pd.DataFrame) -> dict[str, str]:
    low, high = own.measured.min(), own.measured.max()
    return {
        "variants": str(len(own)),
        "measured ms": f"{low:.2f} to {high:.2f}",
        "median error": f"{100 * own.error.median():.1f} %",
        "90th percentile": f"{100 * own.error.quantile(0.9):.1f} %",
    }


def _correlation(own: pd.DataFrame) -> dict[str, str]:
    tau = stats.kendalltau(own.predicted, own.measured).statistic
    return {"Kendall, median of the models": f"{tau:.2f}"}


def region_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds, and the share of the saved time that remains with the operator."""
    names = ["eager", "ours", "eager, with", "ours, with"]
    own = frame[frame.metric.isin(names)]
    wide = own.pivot_table(index=["model", "peer"], columns="metric", values="value", sort=False)[names]
    kept = (wide["eager, with"] - wide["ours, with"]) / (wide["eager"] - wide["ours"])
    shown = wide.map("{:.1f}".format).assign(kept=(100 * kept).map("{:.0f} %".format))
    return shown.reset_index().rename(columns={"peer": "executor"})


def plan_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Saving of the plan chosen by measurement over the searched one, if they differ."""
    same = of(frame, metric="gain", note="the searched one")
    wide = frame[~frame.model.isin(same.model)]
    if wide.empty:
        return pd.DataFrame({"model": [f"{len(same)} models"], "chosen": ["the searched one"]})
    wide = wide.pivot_table(index=["model", "peer"], columns="metric", values="value", sort=False)
    shown = (100 * wide[["gain"]]).map("{:.1f} %".format).rename(columns={"gain": "time saved"})
    if "spread" in wide:
        shown["spread"] = (100 * wide.spread).map(lambda each: "" if pd.isna(each) else f"{each:.1f} %")
    shown["chosen"] = of(frame, metric="gain").set_index(["model", "peer"]).note
    shown = shown.reset_index().rename(columns={"peer": "executor"})
    shown.loc[len(shown)] = pd.Series({"model": f"{len(same)} others", "chosen": "the searched one"})
    return shown.fillna("")


def tables(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The table of the part that was measured."""
    if len(of(frame, metric="predicted")):
        return {"Predicted against measured, after random substitutions": variant_table(frame)}
    if len(of(frame, metric="gain")):
        return {"Plans chosen by measurement, against the searched ones": plan_table(frame)}
    return {"Milliseconds of a call, without and with the operator": region_table(frame)}


def inductor_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Models and runs in which both inductor and a runtime that predicts it were timed.

    If several runtimes ran, the one with the lowest prediction counts. "loss" is the cost of taking the best
    of the other peers and executors instead of inductor.
    """
    rows = []
    for (machine, batch), run in of(frame, dtype="float32").groupby(["machine", "batch"], sort=False):
        # "auto" and "default" may have chosen inductor itself.
        run = run[~run.peer.str.contains("/auto|/default") & (run.peer != BASELINE)]
        times = of(run, metric="call").pivot_table(index="model", columns="peer", values="value", sort=False)
        for model, own in times.iterrows():
            others = own[[name for name in own.dropna().index if _SLOW not in name]]
            runtimes = [name for name in registry.row(_SLOW).predicted_from if name in others]
            if not runtimes or pd.isna(own.get(_SLOW_PEER)):
                continue
            graph = graph_of(str(model), int(batch))
            predicted = min(others[name] * price_ratio(graph, {}, _SLOW, name) for name in runtimes)
            share = predicted / others.min()
            rows.append({
                "machine": machine.partition(",")[0], "batch": f"{batch:.0f}", "model": model,
                "measured / predicted": f"{own[_SLOW_PEER] / predicted:.2f}",
                "predicted / best": f"{share:.2f}",
                "left out": "yes" if share >= Policy().least_predicted else "no",
                "loss": f"{100 * (others.min() / own[_SLOW_PEER] - 1):.1f} %",
            })  # fmt: skip
    return pd.DataFrame(rows)


if __name__ == "__main__":
    typer.run(main)
