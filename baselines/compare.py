"""Time torchrlopt against its peers on the suite: `python -m baselines.compare --help`."""

from __future__ import annotations

import itertools
import tempfile
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer
from rich.console import Console

from baselines.models import GROUPS, NAMES
from baselines.peers.case import DTYPES, OURS, PEERS, Case, is_ours
from baselines.peers.cuda import CUDA_PEERS, installed_cuda_peers
from baselines.peers.measured import Row, Settings, measure_models
from baselines.peers.registry import installed_peers
from baselines.shared import terminal
from baselines.shared.arguments import CsvFile, Resume, Rounds, choose, numbers, one, searchers
from baselines.shared.tables import Results, in_order, of, rich
from torchrlopt import executor_table
from torchrlopt.options import Weights

WEIGHTS: tuple[str, ...] = typing.get_args(Weights)
BASE = PEERS[0]
_MAX_BATCH = 65_536


def main(
    models: Annotated[
        str,
        typer.Option(
            help="Models and groups of them, separated by commas; 'all' of the suite, "
            "'suite', 'extended', 'held_out', 'others'."
        ),
    ] = "all",
    peers: Annotated[
        str,
        typer.Option(
            help=f"Peers, separated by commas, or 'all' that are installed: {', '.join(PEERS)}; "
            f"on CUDA: {', '.join(CUDA_PEERS)}."
        ),
    ] = "all",
    rounds: Rounds = 7,
    batch: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1",
    dtype: Annotated[
        str, typer.Option(help=f"Types of weights and inputs: {', '.join(DTYPES)}.")
    ] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="Threads of each peer.")] = 2,
    executor: Annotated[
        str,
        typer.Option(
            help="torchrlopt's executors, by commas; 'auto' times all, 'default' is what users get."
        ),
    ] = "eager",
    searcher: Annotated[
        str,
        typer.Option(
            help="torchrlopt's searchers, separated by commas; 'none': the executor without a plan."
        ),
    ] = "agent",
    weights: Annotated[
        str,
        typer.Option(help=f"torchrlopt's treatment of weights, separated by commas: {', '.join(WEIGHTS)}."),
    ] = "check",
    device: Annotated[str, typer.Option(help="'cpu' or 'cuda'.")] = "cpu",
    csv: CsvFile = None,
    resume: Resume = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that one compilation may take.")] = 600.0,
    jobs: Annotated[
        int, typer.Option(min=1, help="Peers that compile at the same time; calls are timed alone always.")
    ] = 1,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Profile the kernels of calls on CUDA, too.")
    ] = False,
) -> None:
    """Time torchrlopt and its peers on the suite, each model and peer in a separate process.

    Eager PyTorch always runs. Peers compile one after the other and then alternate, round by round. The
    speed-up is the median of the rounds' ratios to eager PyTorch, with its quartiles. The first call includes
    compilation, with caches that do not know the model, but not imports. Errors are against float64; a result
    that is further from it than eager's own rounding explains is reported as wrong and does not count.

    torchrlopt has a row for each combination of executor, weights and searcher. Default options are
    "torchrlopt/default", or "torchrlopt/eager" if no runtime is installed, max-autotune is "torchrlopt/auto";
    with frozen weights they end in "/frozen". On CUDA peers are whole settings, calls are timed with device
    events, and memory is the device's.

    One model takes about a minute, most of it inductor's compilations; all of them take less than 40 minutes.

    Example: python -m baselines.compare --executor eager,auto --weights check,frozen --csv out.csv
    """
    is_on_cuda = one(device, ("cpu", "cuda"), "device") == "cuda"
    if is_on_cuda and not torch.cuda.is_available():
        raise typer.BadParameter("there is no CUDA device here")
    known, installed = (CUDA_PEERS, installed_cuda_peers()) if is_on_cuda else (PEERS, installed_peers())
    settings_of_ours = itertools.product(
        choose(executor, executor_table.choices(), "executor"),
        choose(weights, WEIGHTS, "treatment of weights"),
        choose(searcher, searchers(), "searcher"),
    )
    own: dict[str, list[tuple[Any, ...]]] = {} if is_on_cuda else {OURS: list(settings_of_ours)}
    chosen = dict.fromkeys([BASE, *choose(peers, known, "peer", installed)])
    sizes = numbers(batch, int, "batch sizes", 1, _MAX_BATCH)
    named = ",".join(one for each in models.split(",") for one in GROUPS.get(each, (each,)))
    groups = [
        [Case(model, peer, size, kind, threads, *each, device=device)
         for peer in chosen for each in own.get(peer, [()])]
        for size, kind in itertools.product(sizes, choose(dtype, DTYPES, "dtype"))
        for model in choose(named, list(itertools.chain(*GROUPS.values())), "model", NAMES)
    ]  # fmt: skip
    console = terminal.console()
    terminal.announce(console, torch.cuda.get_device_name() if is_on_cuda else f"{threads} threads")
    of_device = {"machine": torch.cuda.get_device_name()} if is_on_cuda else {}
    results = Results("compare", csv, resume, **of_device)
    groups = missing(groups, results)
    how = Settings(rounds, timeout_s=timeout, jobs=jobs, with_kernels=kernels)
    reasons = measure(groups, how, results, console)
    for title, table in tables(results.frame).items():
        console.print(rich(title, table))
    for line in reasons:
        console.print(line, style="red", highlight=False, markup=False, soft_wrap=True)
    if of(results.frame, metric="call").empty:
        raise typer.Exit(1)


def missing(groups: Sequence[list[Case]], results: Results) -> list[list[Case]]:
    """The groups that the results lack."""
    done = results.frame
    there = set(zip(done.model, done.batch, done.dtype, strict=True))
    return [cases for cases in groups if (cases[0].model, cases[0].batch, cases[0].dtype) not in there]


def measure(groups: Sequence[list[Case]], how: Settings, results: Results, console: Console) -> list[str]:
    """Measure the cases of each model with a bar of the progress, and add them to the table.

    Returns:
        Why cases do not count, one line for each that failed.
    """
    total = sum(len(cases) + how.rounds for cases in groups)
    reasons: list[str] = []
    # The caches are empty, so that a first call includes the compilation.
    with tempfile.TemporaryDirectory() as caches, terminal.progress(console) as progress:
        task = progress.add_task("starting", total=total)

        def announce(phase: str) -> None:
            progress.update(task, description=phase, advance=1)

        for rows in measure_models(groups, how, Path(caches), announce):
            reasons += [f"{row.case.model}, {row.case.label}: {row.reason}" for row in rows if row.reason]
            for row in rows:
                note(results, row)
            results.save()
    return reasons


def note(results: Results, row: Row) -> None:
    """Add a case to the table; a peer that failed has its reason and no numbers."""
    case = row.case
    common = {"batch": case.batch, "dtype": case.dtype, "threads": case.threads}

    def add(metric: str, value: float | None, unit: str, **other: Any) -> None:
        results.add(case.model, case.label, metric, value, unit, **common, **other)

    if row.reason:
        add("failure", None, "", note=row.reason)
        return
    for number, (times_ms, processor_ms) in enumerate(zip(row.rounds_ms, row.processor_ms, strict=True)):
        q1, median, q3 = pd.Series(times_ms).quantile([0.25, 0.5, 0.75])
        for metric, ms in (("call", median), ("call, first quartile", q1), ("call, third quartile", q3)):
            add(metric, ms, "ms", round=number)
        add("call, minimum", min(times_ms), "ms", round=number)
        add("call, processor", processor_ms, "ms", round=number)
    add("peak memory", row.peak_mb, "MB")
    add("first call", row.first_call_s, "s", note=row.kept)
    for metric, value in (("error", row.max_error), ("rms error", row.rms_error)):
        if value is not None:
            add(metric, value, "")
    if row.figure is not None:
        add("figure", *row.figure)
    for name, launches, us, busy_us in row.kernels:
        for metric, value, unit in (
            ("launches", launches, ""),
            ("kernel", us, "us"),
            ("busy", busy_us, "us"),
        ):
            add(metric, value, unit, setting=name)


# ---- tables


def calls(frame: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds per call of each peer (columns) by model and round, for models that eager PyTorch ran."""
    own = of(frame, metric="call")
    own = own.assign(round=own["round"].fillna(-1))
    wide = own.pivot_table(index=["model", "round"], columns="peer", values="value", sort=False)
    wide = wide[in_order(own.peer)].reindex(in_order(own.model), level="model")
    return wide[wide[BASE].notna()]


def speed_ups(frame: pd.DataFrame, quantile: float = 0.5) -> pd.DataFrame:
    """Speed-up of each peer over eager PyTorch, by model: a quantile over the rounds."""
    wide = calls(frame)
    return _of_rounds(wide.rdiv(wide[BASE], axis=0), quantile)


def over_best(frame: pd.DataFrame) -> pd.DataFrame:
    """Speed-up of torchrlopt over the fastest of the other peers on each model."""
    wide = calls(frame)
    others = wide[[peer for peer in wide if not is_ours(peer)]]
    best = _of_rounds(others, 0.5).idxmin(axis=1)
    base = pd.Series([others.at[key, best[key[0]]] for key in wide.index], index=wide.index)
    return _of_rounds(wide[[peer for peer in wide if is_ours(peer)]].rdiv(base, axis=0), 0.5)


def gains_of_plans(ratios: pd.DataFrame) -> pd.DataFrame:
    """Speed-up from the plan in each executor that ran with and without one."""
    pairs = [peer for peer in ratios if f"{peer}/none" in ratios]
    return pd.DataFrame({f"{peer} / without a plan": ratios[peer] / ratios[f"{peer}/none"] for peer in pairs})


def _of_rounds(wide: pd.DataFrame, quantile: float) -> pd.DataFrame:
    return wide.groupby(level="model", sort=False).quantile(quantile)


def geometric_mean(values: pd.Series) -> float:
    """Geometric mean over the models that have a value."""
    known = values.dropna()
    return float(known.prod() ** (1 / len(known))) if len(known) else float("nan")


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per model and one for the geometric means, as texts; for one batch size and type."""
    ratios = speed_ups(frame)
    gains = gains_of_plans(ratios)
    best = pd.DataFrame() if len(gains.columns) else over_best(frame).add_suffix(" / best peer")
    everything = pd.concat([ratios.drop(columns=BASE), best, gains], axis=1)
    eager_ms = _of_rounds(calls(frame)[[BASE]], 0.5)[BASE]
    shown = everything.map(_times)
    if frame["round"].nunique() > 2:  # quartiles over the rounds
        low, high = (speed_ups(frame, quantile) for quantile in (0.25, 0.75))
        for peer in ratios.columns.drop(BASE):
            shown[peer] += (
                " (" + low[peer].map("{:.2f}".format) + " to " + high[peer].map("{:.2f}".format) + ")"
            )
    shown.insert(0, "eager ms", eager_ms.map("{:.1f}".format))
    if not len(gains.columns):  # memory and first calls of eager PyTorch, inductor and torchrlopt
        labels = [peer for peer in ratios if peer in PEERS[:2] or is_ours(peer)]
        for metric, name, spec in (("peak memory", "peak MB", ".0f"), ("first call", "first call s", ".1f")):
            shown[name] = _costs(frame, metric, labels, spec).reindex(shown.index)
    means = everything.apply(geometric_mean).map(_times)
    shown.loc["**geomean**"] = pd.Series({name: f"**{text}**" for name, text in means.items()})
    if "peak MB" in shown:
        shown.loc["**geomean**", ["peak MB", "first call s"]] = [f"({' / '.join(labels)})", "(the same)"]
    return shown.fillna("").rename_axis("model").reset_index()


def _costs(frame: pd.DataFrame, metric: str, labels: Sequence[str], spec: str) -> pd.Series:
    wide = of(frame, metric=metric).pivot_table(index="model", columns="peer", values="value", sort=False)
    texts = wide.reindex(columns=list(labels)).map(
        lambda value: "-" if pd.isna(value) else format(value, spec)
    )
    return texts.agg(" / ".join, axis=1)


def _times(ratio: float) -> str:
    return "-" if pd.isna(ratio) else f"{ratio:.2f}x"


def tables(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The table of each batch size and type, by title."""
    found = {}
    for (batch, dtype), own in frame.groupby(["batch", "dtype"], sort=False):
        if not of(own, metric="call", peer=BASE).empty:
            found[f"Speed-up over {BASE}, batch {batch:.0f}, {dtype}"] = table(own)
    return found


if __name__ == "__main__":
    typer.run(main)
