"""Figures 4.1 and 4.5 and table 4.2 of the dissertation: measured latency and memory of optimised graphs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from scipy import stats

from torchrlopt.errors import RlOptError
from torchrlopt.machine.profiling import trace, variant
from training.papers.experiment import THEIRS, Data, Experiment, Results, Runs, Shown, bars, frame
from training.papers.graphs import (
    BERT,
    GRAPHS,
    LIBRARIES,
    OURS,
    SMALL,
    TASO,
    graph_of,
    graphs_at,
    library,
    module_of,
)
from training.papers.runner import EXECUTORS, Result, Scale, Work, kind, measured
from training.papers.searches import found_by, prices
from training.papers.stats import median_interval

AS_WRITTEN = "as written"  # the module itself, called by PyTorch
UNOPTIMISED = "unoptimised"  # the unmodified graph, on the executor
STEPS = 5_000  # of a search; figure 4.2 shows what more steps would find
Form = tuple[str, str, str, int, int]
"""Title, searcher ("walk": random steps from a prefix of greedy's plan, "": none), rules, steps, seed."""
GREEDY: Form = (f"greedy, {LIBRARIES[OURS]}", "greedy", OURS, STEPS, 0)
FORMS: tuple[Form, ...] = (
    (UNOPTIMISED, "", OURS, 0, 0),
    GREEDY,
    (f"TASO's search, {LIBRARIES[OURS]}", "taso", OURS, STEPS, 0),
    (f"TASO's search, {LIBRARIES[TASO]}", "taso", TASO, STEPS, 0),
)
#: Other compilers with a CPU backend. They are in the committed results and not measured any more:
#: `baselines.compare` measures those of today.
PEERS = {
    "eager": "PyTorch",
    "tensorflow": "TensorFlow, Grappler",
    "tensorflow_plain": "TensorFlow without Grappler",
    "tvm": "TVM, not tuned",
    "onnxruntime": "ONNX Runtime",
    "torchrlopt": "ours, in eager PyTorch",
}
METRICS = ("predicted ms", "GFLOP", "memory MB", "launches", "measured ms")
_WALK, _FIRST_SEED = 40, 7_000_000  # maximum random steps; a seed range that nothing else uses


def _of_forms(graph: str, executor: str, forms: Sequence[Form], calls: int) -> str:
    hashes = sorted({library(form[2]).hash for form in forms})
    return f"{hashes} {measured(executor=executor)}"


@kind(_of_forms, measures=True, own_process=True)
def timed(work: Work, graph: str, executor: str, forms: Sequence[Form], calls: int) -> Result:
    """Time several forms of one graph on one executor, alternating; equal graphs are measured once.

    Next to wall-clock times it records processor times: on a busy machine only those tell the cost of a call.
    """
    module, inputs = module_of(graph)
    (source,) = trace(module, inputs)
    cost = prices(executor, 0)
    found: list[dict[str, Any]] = []
    kinds: dict[str, Callable[[], object]] = {}
    for form in forms:
        title = form[0]
        own, num_steps = _graph_of(graph, executor, form)
        code = f"{own.hash():016x}" if title != AS_WRITTEN else AS_WRITTEN
        told = {"title": title, "hash": code, "steps": num_steps, "reason": "", **cost.metrics(own)}
        if code not in kinds:
            try:
                if title == AS_WRITTEN:
                    kinds[code] = lambda: module(*inputs)
                else:
                    lowered = source.lower(own, executor)
                    kinds[code] = lambda lowered=lowered: lowered(*source.inputs)  # type: ignore[misc]
                with torch.no_grad():
                    kinds[code]()
            except RlOptError as error:
                kinds.pop(code, None)
                told["reason"] = str(error).splitlines()[0]
        found.append(told)
    with torch.no_grad():
        samples = _in_turns(kinds, calls)
        memory = {code: _call_mb(call) if executor == "eager" else None for code, call in kinds.items()}
    for told in found:
        own_samples = samples.get(told["hash"], [])
        told |= {"cpu_ms": [cpu for cpu, _ in own_samples], "wall_ms": [wall for _, wall in own_samples]}
        told["call_mb"] = memory.get(told["hash"])
    return {"forms": found}


def _graph_of(graph: str, executor: str, form: Form) -> tuple[Any, int]:
    """The graph of a form, and the number of steps that led to it."""
    _, searcher, rules, steps, seed = form
    first = graph_of(graph)
    if not searcher:
        return first, 0
    is_walk = searcher == "walk"
    found = found_by(graph, "greedy" if is_walk else searcher, steps, rules=rules, executor=executor)
    if is_walk:
        return variant(first, library(rules), found["steps"], seed, steps)
    return found["graph"], len(found["steps"])


def _in_turns(calls: Mapping[str, Callable[[], object]], count: int) -> dict[str, list[tuple[float, float]]]:
    """Milliseconds of processor and wall-clock time of `count` calls of each callable, alternating."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    order = list(calls)
    for turn in range(count):
        for place in range(len(order)):
            name = order[(place + turn) % len(order)]
            calls[name]()  # warms the caches with its own weights
            wall, cpu = time.perf_counter(), time.process_time()
            calls[name]()
            spent = time.process_time() - cpu, time.perf_counter() - wall
            samples[name].append((1e3 * spent[0], 1e3 * spent[1]))
    return samples


def _call_mb(call: Callable[[], object]) -> float:
    """Peak memory of tensors during a call, beyond what was allocated before it.

    Computed from the allocations in PyTorch's profiler. Resident memory would be wrong, because executors
    keep blocks from one call to the next.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        call()
    results = profile.profiler.kineto_results if profile.profiler is not None else None
    events = [each for each in results.events() if each.name() == "[memory]"] if results is not None else []
    in_use = itertools.accumulate(each.nbytes() for each in sorted(events, key=lambda each: each.start_ns()))
    return max(in_use, default=0) / 1e6


def _latency_runs(scale: Scale) -> Runs:
    return _timed_runs(scale, EXECUTORS)


def _timed_runs(scale: Scale, executors: Sequence[str]) -> Runs:
    calls = scale.steps(60, least=9)
    forms = {"eager": ((AS_WRITTEN, "", OURS, 0, 0), *FORMS)}
    return {
        (name, executor): timed(graph=name, executor=executor, forms=forms.get(executor, FORMS), calls=calls)
        for name in graphs_at(scale.share)
        for executor in executors
    }


def _ratio(form: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[float, float, float]:
    """Speed-up over the base, per round: median and interval; nothing for the same graph."""
    if form["hash"] == base["hash"] or not form["cpu_ms"] or not base["cpu_ms"]:
        return (np.nan,) * 3
    return median_interval(np.divide(base["cpu_ms"], form["cpu_ms"]).tolist())


def _latency_data(results: Results, scale: Scale) -> Data:
    rows = []
    for (name, executor), result in results.items():
        base = next(each for each in result["forms"] if each["title"] == UNOPTIMISED)
        for each in result["forms"]:
            times = [
                float(of(each[column])) if each[column] else np.nan
                for column in ("cpu_ms", "wall_ms")
                for of in (np.min, np.median)
            ]
            rows.append(
                (name, executor, each["title"], each["time_us"] / 1e3, *times, len(each["cpu_ms"]),
                 each["steps"], each["reason"], *_ratio(each, base))
            )  # fmt: skip
    columns = (
        "graph", "executor", "form", "predicted_ms", "cpu_least_ms", "cpu_median_ms", "wall_least_ms",
        "wall_median_ms", "calls", "steps", "reason", "ratio", "ratio_low", "ratio_high",
    )  # fmt: skip
    return Data({"": frame(rows, *columns)})


def _latencies_shown(data: Data) -> Shown:
    forms = [form[0] for form in FORMS[1:]]
    own = data.main.assign(graph=data.main["graph"].map(GRAPHS))
    firsts = own[own["form"] == UNOPTIMISED].set_index(["graph", "executor"])
    own = own.join(firsts["predicted_ms"].rename("first_ms"), on=["graph", "executor"])
    own["foretold"] = own["first_ms"] / own["predicted_ms"]
    compared = own[own["form"].isin(forms)]
    texts = [
        row.reason
        or (
            "the same graph"
            if np.isnan(row.ratio)
            else f"{row.ratio:.2f} ({row.ratio_low:.2f} to {row.ratio_high:.2f}) [{row.foretold:.2f}]"
        )
        for row in compared.itertuples()
    ]
    tables = {}
    for executor, mine in compared.assign(text=texts).groupby("executor", sort=False):
        table = mine.pivot(index="graph", columns="form", values="text").reindex(mine["graph"].unique())[
            forms
        ]
        table.insert(0, "unoptimised ms", firsts.xs(executor, level="executor")["cpu_median_ms"])
        tables[executor] = table.reset_index()
    # Points with the intervals computed above: seaborn would compute its own.
    ends = compared.melt(
        ["graph", "executor", "form"], ["ratio", "ratio_low", "ratio_high"], value_name="times as fast"
    )
    grid = sns.catplot(
        ends, kind="point", x="graph", y="times as fast", hue="form", col="executor", estimator="median",
        errorbar=("pi", 100), dodge=0.4, linestyle="none", height=3.6,
    )  # fmt: skip
    grid.tick_params(axis="x", rotation=25, labelsize=7)
    grid.refline(y=1)
    written = own[own["form"] == AS_WRITTEN].set_index("graph")["ratio"]
    is_inside = (compared["foretold"] >= compared["ratio_low"]) & (
        compared["foretold"] <= compared["ratio_high"]
    )
    return {"": grid.figure}, {
        "tables": tables,
        "calls": int(own["calls"].max()),
        "written": (1 / written).rename("times as fast").reset_index(),
        "inside": int(is_inside.sum()),
        "pairs": int(compared["ratio"].notna().sum()),
        **(_peers_shown(data.frames["peers"]) if "peers" in data.frames else {"peers": None}),
    }


def _peers_shown(times: pd.DataFrame) -> dict[str, Any]:
    """A table of the other compilers, and those that failed."""

    def text(row: Any) -> str:
        if row.reason or np.isnan(row.ratio):
            return "failed"
        if row.peer == "eager":
            return f"{row.median_ms:.3g} ms"
        digits = ".2g" if row.ratio < 0.1 else ".2f"
        return f"{row.ratio:{digits}} ({row.ratio_q1:{digits}} to {row.ratio_q3:{digits}})"

    own = times.assign(text=[text(row) for row in times.itertuples()], graph=times["graph"].map(GRAPHS))
    table = own.pivot(index="graph", columns="peer", values="text").reindex(own["graph"].unique())
    failed = own[own["reason"] != ""][["graph", "peer", "reason"]]
    return {"peers": table[list(PEERS)].rename(columns=PEERS).reset_index(), "failed": failed}


def _memory_runs(scale: Scale) -> Runs:
    return _timed_runs(scale, ("eager",))


def _memory_data(results: Results, scale: Scale) -> Data:
    rows = []
    for (name, _), result in results.items():
        forms = {each["title"]: each for each in result["forms"]}
        for title in (UNOPTIMISED, GREEDY[0]):
            own = forms[title]
            saved = 1 - 1 / _ratio(own, forms[UNOPTIMISED])[0] if title == GREEDY[0] else np.nan
            rows.append(
                (name, title, float(np.median(own["cpu_ms"])), own["call_mb"], own["peak_bytes"] / 1e6, saved)
            )
    columns = ("graph", "form", "cpu_median_ms", "call_mb", "predicted_peak_mb", "time_saved")
    return Data({"": frame(rows, *columns)})


def _memory_shown(data: Data) -> Shown:
    own = data.main.assign(graph=data.main["graph"].map(GRAPHS))
    before, after = (own[own["form"] == form].set_index("graph") for form in (UNOPTIMISED, GREEDY[0]))
    numbers = ["cpu_median_ms", "call_mb", "predicted_peak_mb"]
    saved = (1 - after[numbers] / before[numbers]).assign(cpu_median_ms=after["time_saved"].fillna(0.0))
    table = before[numbers].join(saved.map("{:.1%}".format), rsuffix=" saved")
    table.columns = pd.Index(
        [
            "ms",
            "MB of a call",
            "MB predicted",
            "time saved",
            "memory of a call saved",
            "predicted memory saved",
        ]
    )
    columns = ["theirs: ms", "theirs: GiB", "theirs: time saved", "theirs: memory saved"]
    theirs = pd.DataFrame(THEIRS["memory"], index=columns).T.rename(index=GRAPHS)
    table = table.join(theirs).fillna(dict.fromkeys(columns, "")).reset_index()
    return {"": bars(own, "graph", "call_mb", hue="form").figure}, {"table": table}


def _pair_runs(scale: Scale) -> Runs:
    count = scale.steps(120, least=12)
    walks = [(f"walk {i}", "walk", OURS, _WALK, _FIRST_SEED + i) for i in range(count)]
    forms = (FORMS[0], ("greedy", "greedy", OURS, STEPS, 0), *walks)
    wanted = [name for name in (BERT, "squeezenet1_1") if name in graphs_at(scale.share)]
    chosen = wanted if scale.share >= SMALL else wanted[:1]
    return {
        name: timed(graph=name, executor="eager", forms=forms, calls=scale.steps(40, least=4))
        for name in chosen
    }


def _pair_data(results: Results, scale: Scale) -> Data:
    rows = []
    for name, result in results.items():
        for each in {form["hash"]: form for form in result["forms"] if form["cpu_ms"]}.values():
            metrics = (each["time_us"] / 1e3, each["flops"] / 1e9, each["bytes"] / 1e6, each["launches"])
            rows.append((name, each["title"], each["steps"], *metrics, float(np.median(each["cpu_ms"]))))
    calls = max(len(form["cpu_ms"]) for result in results.values() for form in result["forms"])
    return Data({"": frame(rows, "graph", "form", "steps", *METRICS)}, {"calls": calls})


def tau_interval(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Interval of Kendall's rank correlation, by bootstrapping the graphs with a fixed seed."""
    drawn = np.random.default_rng(0).integers(0, len(one), (1_000, len(one)))
    taus = [stats.kendalltau(one[each], other[each]).statistic for each in drawn]
    low, high = np.nanpercentile(taus, [2.5, 97.5])
    return float(low), float(high)


def _pairs_shown(data: Data) -> Shown:
    figures, tables = {}, {}
    for name, own in data.main.groupby("graph", sort=False):
        values = own[list(METRICS)]
        taus = values.corr("kendall").mask(np.eye(len(METRICS), dtype=bool))
        spans = [f"{100 * (values[each].max() / values[each].min() - 1):.0f} %" for each in METRICS]
        last = values["measured ms"].to_numpy()
        intervals = [tau_interval(values[each].to_numpy(), last) for each in METRICS[:-1]]
        table = taus.reset_index(names="")
        table["of measured ms, interval"] = [*(f"{low:.2f} to {high:.2f}" for low, high in intervals), ""]
        table["largest above least"] = spans
        tables[f"{GRAPHS[str(name)]}: {len(own)} graphs"] = table
        # The paper's graph gets the file name of the figure itself.
        grid = sns.pairplot(values, height=1.5, plot_kws={"s": 8}, diag_kws={"color": "C1"})
        figures["" if name == BERT else f"-{name}"] = grid.figure
    return figures, {"tables": tables, "walk": _WALK}


FIGURE_4_1 = Experiment(
    "Measured latencies of the optimised graphs",
    "Parker 2021, figure 4.1",
    _latency_runs,
    _latency_data,
    _latencies_shown,
    "fig4.1",
)
FIGURE_4_5 = Experiment(
    "Predicted time, FLOPs, memory accesses, launches and measured time",
    "Parker 2021, figure 4.5",
    _pair_runs,
    _pair_data,
    _pairs_shown,
    "fig4.5",
)
TABLE_4_2 = Experiment(
    "Latency and memory",
    "Parker 2021, table 4.2",
    _memory_runs,
    _memory_data,
    _memory_shown,
    "table4.2",
)
