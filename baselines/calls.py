"""Call costs: first calls, overhead in later calls, tokens of text, many threads, and the clock itself.

`python -m baselines.calls --help`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from baselines.models import NAMES
from baselines.peers.case import OURS, Case
from baselines.peers.registry import installed_peers
from baselines.shared import clock, cold_call, overhead, terminal, text_generation
from baselines.shared.arguments import CsvFile, Rounds, choose, numbers, one
from baselines.shared.rounds import Contestant, Runner, alternated, started
from baselines.shared.tables import Results, in_order, of, rich

PARTS = ("first", "overhead", "decode", "threads", "clock")
_CONCURRENT = ("eager", "onnxruntime", "openvino", OURS)
_USUAL_WAYS = ("eager", cold_call.BASE, "default", cold_call.STORED)
_TIMEOUT_S = 900.0


def main(
    parts: Annotated[str, typer.Option(help=f"Of {', '.join(PARTS)}, separated by commas.")] = "all",
    models: Annotated[
        str, typer.Option(help="Of first and threads: models of the suite, separated by commas.")
    ] = "resnet50,bert_base",
    ways: Annotated[
        str, typer.Option(help=f"Of first: how it is called, of {', '.join(cold_call.WAYS)}.")
    ] = ",".join(_USUAL_WAYS),
    subjects: Annotated[
        str, typer.Option(help="Of overhead: even numbers of weights, or models of the suite.")
    ] = "10,100,1000",
    executors: Annotated[
        str, typer.Option(help="Of overhead: executors; a runtime has to be installed.")
    ] = "eager",
    calls: Annotated[int, typer.Option(min=20, help="Of overhead: calls of each way.")] = 600,
    texts: Annotated[str, typer.Option(help=f"Of decode: of {', '.join(text_generation.MODELS)}.")] = "all",
    tokens: Annotated[int, typer.Option(min=2, help="Of decode: tokens of each generation.")] = 64,
    spins: Annotated[int, typer.Option(min=1, help="Of clock: samples.")] = 10_000,
    neighbours: Annotated[int, typer.Option(min=0, help="Of clock: processes that disturb it.")] = 4,
    dtype: Annotated[str, typer.Option(help="Of decode: float32 or bfloat16.")] = "float32",
    callers: Annotated[str, typer.Option(help="Of threads: numbers of Python threads that call.")] = "1,2,4",
    seconds: Annotated[float, typer.Option(min=0.01, help="Of threads: length of a round.")] = 1.0,
    rounds: Rounds = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of first and decode.")] = 1,
    csv: CsvFile = None,
) -> None:
    """Time first calls, calls of tiny models, and tokens of generated text; all ways alternate.

    first: the first call of a new process that has only built the model. eager is the unmodified model,
    aot_eager torch.compile's backend of that name, which traces as ours does and compiles nothing; all others
    are `optimise`. default starts with an empty plan store, stored with the store left by an earlier process.
    On a busy machine, look at the processor time.

    overhead: whole calls, and their time beyond the executor's part, on one thread. check and frozen are
    `optimise` with these weights, compile_check and compile_frozen torch.compile with our backend. The
    minimum over the calls is their cost on an otherwise idle machine.

    decode: greedy generation, each way in a separate process. The clock starts at the first token. Every way
    has to produce eager PyTorch's tokens.

    clock: spins of known processor time, timed as the judge times calls. None may be too low: a graph would
    seem faster than it is.

    Example: python -m baselines.calls --parts overhead --subjects 10,squeezenet1_1 --csv calls.csv
    """
    chosen = choose(parts, PARTS, "part")
    named, chosen_ways = choose(models, NAMES, "model"), choose(ways, cold_call.WAYS, "way")
    own_executors = choose(executors, overhead.EXECUTORS, "executor")
    small = [name if _is_even(name) else one(name, NAMES, "model") for name in subjects.split(",")]
    chosen_texts = choose(texts, tuple(text_generation.MODELS), "model")
    dtype = one(dtype, ("float32", "bfloat16"), "dtype")
    console = terminal.console()
    terminal.announce(console, f"{threads} threads")
    results = Results("calls", csv, dtype="float32", batch=1)
    if "first" in chosen:
        for model in named:
            first_calls(model, chosen_ways, rounds, threads, results)
    if "overhead" in chosen:
        for executor in own_executors:
            for subject in small:
                overheads(subject, executor, calls, results)
    if "decode" in chosen:
        for text in chosen_texts:
            generations(text, dtype, threads, tokens, rounds, results)
    if "threads" in chosen:
        for model in named:
            for number in numbers(callers, int, "number of callers", 1, 1024):
                concurrent(model, number, seconds, rounds, results)
    if "clock" in chosen:
        found = clock.spins(spins, neighbours)
        values = {"too low": sum(each < clock.TOO_LOW for each in found), "lowest": min(found)}
        values |= {"median": float(np.median(found)), "highest": max(found)}
        for metric, value in values.items():
            results.add("spin", "judge", metric, value, "", setting=f"{neighbours} neighbours, {spins} spins")
        results.save()
    for title, table in tables(results.frame).items():
        if len(table):
            console.print(rich(title, table))
    failed = of(results.frame, metric="failure")
    for _, row in failed.iterrows():
        console.print(f"{row.model}, {row.peer}: {row.note}", style="red", markup=False)
    if len(failed) == len(results.frame):
        raise typer.Exit(1)


def _is_even(text: str) -> bool:
    if not text.strip().isdigit():
        return False
    if int(text) % 2 or int(text) == 0:
        raise typer.BadParameter("a linear has two weights: numbers of weights are even")
    return True


def first_calls(model: str, ways: list[str], rounds: int, threads: int, results: Results) -> None:
    """One process per call; `stored` uses the store of an extra process that is not measured."""
    with tempfile.TemporaryDirectory() as kept:
        for number in range(rounds):
            for way in ways:
                arguments = {"model": model, "way": way, "threads": threads, "batch": 1}
                contestant = Contestant(way, "baselines.shared.cold_call:ColdCall", arguments, threads)
                is_stored = way == cold_call.STORED
                for _ in range(2 if is_stored and number == 0 else 1):
                    with tempfile.TemporaryDirectory() as fresh:
                        caches = Path(kept if is_stored else fresh)
                        with started([contestant], caches, _TIMEOUT_S) as (runner,):
                            found = runner.ask("measure")
                if runner.reason:
                    _note_failure(results, model, runner, threads)
                    continue
                values = [
                    ("first call", found["wall_s"], "s"),
                    ("first call, processor", found["cpu_s"], "s"),
                    ("first call, peak memory", found["peak_mb"], "MB"),
                    ("later calls, peak memory", found["later_peak_mb"], "MB"),
                    *((f"phase {name}", ms, "ms") for name, ms in found["phases_ms"].items()),
                ]
                for metric, value, unit in values:
                    results.add(
                        model, way, metric, value, unit, round=number, threads=threads, note=found["kept"]
                    )
        results.save()


def overheads(subject: str, executor: str, calls: int, results: Results) -> None:
    """Time all ways of calling one model, in one process."""
    arguments = {"executor": executor, "model": subject}
    contestant = Contestant(executor, "baselines.shared.overhead:Overhead", arguments)
    name = f"{subject} weights" if subject.isdigit() else subject
    with tempfile.TemporaryDirectory() as caches, started([contestant], Path(caches)) as (runner,):
        found = runner.ask("time", calls=calls)
        if runner.reason:
            _note_failure(results, name, runner, 1)
            return
        for way, (whole, beyond) in found.items():
            for metric, times in (("call", whole), ("beyond the executor", beyond)):
                for what, of_all in (("least", min), ("median", np.median)):
                    if times:
                        results.add(
                            name,
                            way,
                            f"{metric}, {what}",
                            float(of_all(times)),
                            "us",
                            setting=executor,
                            threads=1,
                        )
    results.save()


def generations(text: str, dtype: str, threads: int, tokens: int, rounds: int, results: Results) -> None:
    """Time generations of one model, each way in a separate process."""
    contestants = [
        Contestant(
            way,
            "baselines.shared.text_generation:Generation",
            {"model": text, "way": way, "dtype": dtype, "threads": threads, "tokens": tokens},
            threads,
        )
        for way in text_generation.WAYS
    ]
    common = {"dtype": dtype, "threads": threads}
    with tempfile.TemporaryDirectory() as caches, started(contestants, Path(caches), _TIMEOUT_S) as runners:
        expected = None
        for runner in runners:
            reply = runner.ask("prepare")
            if reply is not None:
                expected = reply["tokens"] if expected is None else expected
                if reply["tokens"] != expected:
                    runner.fail("other tokens than eager PyTorch's")
                else:
                    way = runner.contestant.name
                    results.add(text, way, "first generation", reply["first_s"], "s", **common)
        for number, runner, ms in alternated(runners, rounds, "time"):
            results.add(text, runner.contestant.name, "token", ms, "ms", round=number, **common)
        for runner in runners:
            if runner.reason:
                _note_failure(results, text, runner, threads)
    results.save()


def concurrent(model: str, callers: int, seconds: float, rounds: int, results: Results) -> None:
    """Count the calls of many threads; all peers alternate."""
    ours = {"executor": "default", "weights": "check", "searcher": "agent"}
    contestants = []
    for peer in (each for each in _CONCURRENT if each in installed_peers()):
        case = Case(model, peer, 1, "float32", 1, callers=callers, **(ours if peer == OURS else {}))
        contestants.append(Contestant(peer, "baselines.peers.worker:Subject", asdict(case)))
    with tempfile.TemporaryDirectory() as caches, started(contestants, Path(caches), _TIMEOUT_S) as runners:
        for runner in runners:
            runner.ask("prepare")
        for number, runner, rate in alternated(runners, rounds, "rate", seconds=seconds):
            peer = runner.contestant.name
            results.add(
                model, peer, "rate", rate, "1/s", setting=f"{callers} callers", round=number, threads=1
            )
        for runner in runners:
            if runner.reason:
                _note_failure(results, model, runner, 1)
    results.save()


def _note_failure(results: Results, model: str, runner: Runner, threads: int) -> None:
    results.add(model, runner.contestant.name, "failure", None, note=runner.reason, threads=threads)


# ---- tables


def tables(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """All tables by title; those of parts that did not run are empty."""
    return {
        "First calls in a process of their own, medians": first_table(frame),
        "Calls in one thread, microseconds, the least (beyond the executor)": overhead_table(frame),
        "Milliseconds for a token, medians, and the speed-up over eager PyTorch": decode_table(frame),
        "Calls per second of all callers, medians, and the ratio to eager PyTorch": concurrent_table(frame),
        "Samples of spins, as multiples of their processor time": clock_table(frame),
    }


def first_table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per model and way: medians; "beyond" is the time beyond aot_eager's in the same round."""
    own = frame[frame.metric.str.startswith(("first call", "later calls"))]
    if own.empty:
        return pd.DataFrame()
    wide = own.pivot_table(index=["model", "peer", "round"], columns="metric", values="value", sort=False)
    cpu_s = wide["first call, processor"]
    base = cpu_s[cpu_s.index.get_level_values("peer") == cold_call.BASE].droplevel("peer")
    wide["beyond"] = [
        value - base.get((model, number), np.nan) if peer in cold_call.OPTIONS else np.nan
        for (model, peer, number), value in cpu_s.items()
    ]
    medians = wide.groupby(level=["model", "peer"], sort=False).median()
    columns: dict[str, tuple[str, str]] = {
        "CPU s": ("first call, processor", "{:.1f}"),
        "beyond aot_eager": ("beyond", "{:.1f}"),
        "wall s": ("first call", "{:.1f}"),
        "peak MB": ("first call, peak memory", "{:.0f}"),
        "peak MB of later calls": ("later calls, peak memory", "{:.0f}"),
    }
    return _shown(medians, columns).rename(columns={"peer": "way"})


def overhead_table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per model, one column per way of calling it; the time beyond the executor is in brackets."""
    own = frame[frame.metric.isin(("call, least", "beyond the executor, least"))]
    if own.empty:
        return pd.DataFrame()
    keys = ["setting", "model"]
    wide = own.pivot_table(index=keys, columns=["peer", "metric"], values="value", sort=False)
    shown = pd.DataFrame(index=wide.index)
    for way in in_order(own.peer):
        beyond = wide[way].get("beyond the executor, least", pd.Series(np.nan, wide.index))
        shown[way] = [
            "" if pd.isna(us) else f"{us:.0f}" + ("" if pd.isna(more) else f" ({more:.0f})")
            for us, more in zip(wide[way]["call, least"], beyond, strict=True)
        ]
    return shown.reset_index().rename(columns={"setting": "executor"})


def decode_table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per model, one column per way."""
    own = of(frame, metric="token")
    if own.empty:
        return pd.DataFrame()
    ms = own.pivot_table(index="model", columns="peer", values="value", aggfunc="median", sort=False)
    ms = ms[in_order(own.peer)]
    ratios = ms.rdiv(ms["eager"], axis=0)
    shown = ms.map("{:.2f}".format)
    for way in shown.columns.drop("eager"):
        shown[way] += " (" + ratios[way].map("{:.2f}x".format) + ")"
    return shown.reset_index()


def concurrent_table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per model and number of callers, one column per peer."""
    own = of(frame, metric="rate")
    if own.empty:
        return pd.DataFrame()
    keys = ["model", "setting"]
    rates = own.pivot_table(index=keys, columns="peer", values="value", aggfunc="median", sort=False)
    rates = rates[in_order(own.peer)]
    shown = rates.map("{:.1f}".format)
    if "eager" in rates:
        for peer, ratios in rates.drop(columns="eager").div(rates["eager"], axis=0).items():
            shown[peer] += " (" + ratios.map("{:.2f}x".format) + ")"
    return shown.reset_index()


def clock_table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per run: how many samples were too low, and how far they spread."""
    own = of(frame, model="spin")
    if own.empty:
        return pd.DataFrame()
    wide = own.pivot_table(index="setting", columns="metric", values="value", sort=False)
    return _shown(wide, {name: (name, "{:.4g}") for name in in_order(own.metric)})


def _shown(wide: pd.DataFrame, columns: dict[str, tuple[str, str]]) -> pd.DataFrame:
    def text(spec: str) -> Callable[[float], str]:
        return lambda value: "" if pd.isna(value) else spec.format(value)

    made = {name: wide[metric].map(text(spec)) for name, (metric, spec) in columns.items() if metric in wide}
    return pd.DataFrame(made).reset_index()


if __name__ == "__main__":
    typer.run(main)
