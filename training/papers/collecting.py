"""The cost of collection: the control of its tables, and what is drawn beside them from committed results."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import torch

from training.papers.experiment import Data, Experiment, Results, Runs, Shown, bars, frame, lines, recorded
from training.papers.runner import Result, Scale, Work, kind, new_processes
from training.papers.stats import compared, mean_text
from training.samplers import SAMPLERS

ALONE = "in_process"
PHASES = ("collect", "broadcast", "learn")
SMALL = 0.05  # below this share: short control runs


@kind(measures=True)
def cores(work: Work, repetition: int, rounds: int) -> Result:
    """Seconds of the same work in one process, and of the slower of two concurrent processes.

    This is the control of all tables of workers. Virtual cores share caches, memory, clock and sometimes one
    physical core, so two independent processes do not always do twice the work.
    """
    # Separate pools: one pool might give both pieces of work to the same process.
    with new_processes(1) as one, new_processes(1) as other:
        pools: list[ProcessPoolExecutor] = [one, other]
        for begun in [pool.submit(seconds_of_work, rounds // 10) for pool in pools]:
            begun.result()
        alone = one.submit(seconds_of_work, rounds).result()
        together = [pool.submit(seconds_of_work, rounds) for pool in pools]
        return {"alone": alone, "together": max(each.result() for each in together)}


def seconds_of_work(rounds: int) -> float:
    """Small matrix products in sequence, like a worker's networks, on one thread; returns the seconds."""
    torch.set_num_threads(1)
    source = torch.Generator().manual_seed(0)
    rows, weight = torch.randn(200, 64, generator=source), torch.randn(64, 64, generator=source)
    began = time.perf_counter()
    for _ in range(rounds):
        torch.relu(rows @ weight)
    return time.perf_counter() - began


def core_runs(scale: Scale) -> Runs:
    """One control run per repetition of a table of workers, by ("cores", repetition)."""
    rounds = 500 if scale.share < SMALL else 50_000
    return {("cores", each): cores(repetition=each, rounds=rounds) for each in range(scale.seeds)}


def core_facts(results: Results) -> dict[str, float]:
    """Speed-up of two processes over one, from the best times; least and most over the repetitions."""
    found = pd.DataFrame([each for key, each in results.items() if key[0] == "cores"])
    gains = 2 * found["alone"] / found["together"]
    best = 2 * found["alone"].min() / found["together"].min()
    return {"cores": float(best), "cores_least": float(gains.min()), "cores_most": float(gains.max())}


def are_same(rows: pd.DataFrame, alike: str, by: Sequence[str], first: tuple[Any, ...]) -> pd.Series[str]:
    """Whether data and weights equal those of a reference, by kind of workers: "yes" or "NO".

    Args:
        rows: with hashes.
        alike: column whose groups must give equal results.
        by: columns that identify the workers.
        first: values of `by` of the reference.
    """
    hashes = rows["data_sha256"] + rows["weights_sha256"]
    is_first = (rows[list(by)] == list(first)).all(axis="columns")
    expected = rows[alike].map(hashes[is_first].groupby(rows[alike]).first())
    keys = [rows[name] for name in by]
    return (hashes == expected).groupby(keys, sort=False).all().map({True: "yes", False: "NO"})


def phases(groups: Any, how: str) -> pd.DataFrame:
    """Seconds of each phase by group, summed or averaged."""
    return (
        groups[[f"{phase}_seconds" for phase in PHASES]]
        .agg(how)
        .set_axis([f"{phase} s" for phase in PHASES], axis="columns")
    )


def _scaling_shown(data: Data) -> Shown:
    own, team = data.main, ["row", "kind", "workers"]
    # The shortest time of each update over all repetitions.
    shortest = own.groupby([*team, "update"], sort=False).min(numeric_only=True)
    table = phases(shortest.groupby(team, sort=False), "sum")
    figure = table.plot.bar(stacked=True, ylabel="seconds", xlabel="", figsize=(8, 5)).figure
    figure.set_layout_engine("constrained")
    collect = table["collect s"]
    table["against one of its kind"] = [collect[row, who, 1] / own for (row, who, _), own in collect.items()]
    table["against this process"] = [collect[row, ALONE, 1] / own for (row, *_), own in collect.items()]
    table["data and weights as in this process"] = pd.concat(
        {row: are_same(each, "row", team[1:], (ALONE, 1)) for row, each in own.groupby("row", sort=False)}
    )
    sums = own.groupby([*team, "repetition"])["collect_seconds"].sum().unstack("repetition")
    gains = []
    for row, who, count in table.index:
        if count == 2:  # against the faster single worker of each repetition: this process or one of the kind
            turns = np.minimum(sums.loc[row, ALONE, 1], sums.loc[row, who, 1]) / sums.loc[row, who, 2]
            gains.append((row, who, *(f"{each:.2f}" for each in (turns.median(), turns.min(), turns.max()))))
    return {"": figure}, {
        "table": table.reset_index().rename(columns={"kind": "workers are"}),
        "gains": frame(gains, "row", "two workers are", "times as fast as one, median", "least", "most"),
        "updates": own["update"].nunique(),
        "turns": own["repetition"].nunique(),
    }


def _sampler_shown(data: Data) -> Shown:
    own = data.main.assign(saved=100 * data.main["saved"])
    ends = own.groupby(["sampler", "seed"], sort=False)["saved"].agg(untrained="first", trained="last")
    ends["learned"] = ends["trained"] - ends["untrained"]
    table = ends.groupby("sampler", sort=False).agg(mean_text)
    table["real steps"] = pd.Series(data.facts["real_steps"])
    grid = lines(own, "update", "saved", hue="sampler", aspect=1.5)
    grid.set_axis_labels("updates", "saved on held-out graphs, %")
    return {"": grid.figure}, {
        "table": table.reset_index(),
        "tests": compared({sampler: ends.loc[sampler, "learned"].to_numpy() for sampler in SAMPLERS}),
        "updates": int(own["update"].max()),
        "seeds": own["seed"].nunique(),
    }


def _throughput_shown(data: Data) -> Shown:
    best = data.main.groupby(["environment", "collector"], sort=False)["steps_per_cpu_second"].max()
    grid = bars(
        best.reset_index(), "collector", "steps_per_cpu_second", col="environment", sharey=False, aspect=1
    )
    table = best.map("{:,.0f}".format).rename("steps in a second of CPU time").reset_index()
    table["of ours"] = [value / best[key[0], "ours"] for key, value in best.items()]
    return {"": grid.figure}, {"table": table, "turns": data.main["repetition"].nunique()}


#: By name; none of them is in the papers.
EXPERIMENTS: Mapping[str, Experiment] = {
    "scaling": recorded(
        "Time of collection, broadcast and learning on graphs, by kind and number of workers",
        "Beside table 6.1 of Mayer 2023: the same on the task of this project",
        _scaling_shown, "scaling",
    ),
    "samplers": recorded(
        "Samplers of the free parameters of graphs",
        "Beside tables 6.2 and 6.3 of Mayer 2023: the same on the task of this project",
        _sampler_shown, "samplers",
    ),
    "throughput": recorded(
        "Throughput of collection, beside TorchRL and Ray RLlib",
        "Asked of RLgraph's comparison with RLlib",
        _throughput_shown, "throughput",
    ),
}  # fmt: skip
