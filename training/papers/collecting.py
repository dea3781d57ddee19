"""The cost of collection: by kind and number of workers, by sampler, and against other libraries."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from torchrlopt.substitutions import load_library
from training.collectors import collector
from training.collectors.data_hash import data_hash
from training.config import Config
from training.device.prices import cost_of, typical_prices
from training.episodes.play import CandidateChooser, Key, play_group
from training.networks.candidate_controller import CandidateController
from training.papers.experiment import Data, Experiment, Results, Runs, Shown, bars, frame, lines, recorded
from training.papers.runner import Result, Run, Scale, Work, Workplace, kind, new_processes, priced, versions
from training.papers.stats import compared, mean_text
from training.samplers import HOMOGENEOUS, SAMPLERS
from training.scores.evaluate import held_out_graphs
from training.train import trainer_of

EVALUATIONS = 5  # of the agent during a run, in addition to the one before it
TEST_KEYS = 10**7  # offset of the update numbers, so that no collection uses these keys
ALONE = "in_process"
KINDS = tuple(each for each in collector.KINDS if each not in (collector.AUTO, ALONE))
PHASES = ("collect", "broadcast", "learn")
SMALL = 0.05  # below this share: one row, few graphs, short episodes
# The value of a second core: the control of all tables of workers. Virtual cores share caches, memory, clock
# and sometimes one physical core, so two independent processes do not always do twice the work.


@kind(measures=True)
def cores(work: Work, repetition: int, rounds: int) -> Result:
    """Seconds of the same work in one process, and of the slower of two concurrent processes."""
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


# Training on graphs, by row, sampler and kind of workers.


def _of_graphs(settings: Sequence[tuple[str, Any]], test_graphs: int, **others: Any) -> str:
    told = f"{priced()} {HOMOGENEOUS} {EVALUATIONS if test_graphs else ''} {TEST_KEYS}"
    return f"{told} {versions('ray') if dict(settings).get('collector') == 'ray' else ''}"


def _trained(
    work: Work, row: str, settings: Sequence[tuple[str, Any]], test_graphs: int, repetition: int = 0
) -> Result:
    """Train a row; returns hashes of data and weights, seconds, and savings on other graphs.

    Args:
        work: unused.
        row: a name in `training.config.ROWS`.
        settings: training arguments, including the kind of workers.
        test_graphs: held-out graphs on which the agent is measured; 0 for none. Rows "mf" and "plan" only.
        repetition: repetitions differ in nothing else; they serve to measure times.
    """
    config = Config.of_row(row, **dict(settings))
    everything = hashlib.sha256()
    logs: list[dict[str, float]] = []
    gains: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        training = trainer_of(config, Path(folder), prices=typical_prices())
        collect = training.collector.collect

        def watched(state: bytes, keys: Sequence[Any]) -> list[Any]:
            found = collect(state, keys)
            everything.update(data_hash(found).encode())
            return found

        training.collector.collect = watched  # type: ignore[method-assign]
        with training.collector:
            training.begin()
            for update in range(config.updates):
                if test_graphs and update % max(1, config.updates // EVALUATIONS) == 0:
                    gains[update] = gain(training.controller, config, test_graphs)
                logs.append(training.step())
        if test_graphs:
            gains[config.updates] = gain(training.controller, config, test_graphs)
    return {
        "data": everything.hexdigest(),
        "weights": data_hash(dict(training.controller.state_dict())),
        # Skip the first update, during which the workers start.
        "seconds": {phase: [each[f"{phase}_seconds"] for each in logs[1:]] for phase in PHASES},
        "real_steps": training.real_steps,
        "updates": list(gains),
        "gains": list(gains.values()),
    }


on_graphs = kind(_of_graphs, name="on_graphs")(_trained)
on_graphs_timed = kind(_of_graphs, name="on_graphs_timed", measures=True)(_trained)


@torch.no_grad()
def gain(controller: Any, config: Config, count: int) -> float:
    """Mean saving of a policy's episodes on held-out graphs, as a share of the first cost.

    Graphs and random numbers are the same in every call and for every training seed.
    """
    assert isinstance(controller, CandidateController)
    plain = dataclasses.replace(config, row="mf", original_share=1.0, reward="best_so_far")
    chooser = CandidateChooser(controller.eval())
    library, cost = load_library(), cost_of(typical_prices())
    saved = []
    for number, sample in enumerate(held_out_graphs(count)):
        played = play_group(chooser, library, cost, Key(0, TEST_KEYS, number), plain, sample.graph)
        saved.append(0.0 if played is None else float(played.returns.mean()))
    return sum(saved) / len(saved)


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


def _scaling_runs(scale: Scale, place: Workplace) -> Runs:
    """By row, kind, workers and repetition; repetitions are outermost, so a busy minute affects all alike."""
    is_small = scale.share < SMALL
    usual = {
        "groups": 4 if is_small else 24, "rollouts": 4, "max_steps": 5 if is_small else 15, "warm_up": 1,
        "epochs": 1, "updates": 1 + scale.steps(10, least=1),
    }  # fmt: skip
    here = [each for each in KINDS if each != "ray" or importlib.util.find_spec("ray") is not None]
    found: dict[Any, Run] = {}
    for repetition in range(scale.seeds):
        for row in ("mf",) if is_small else ("mf", "plan"):
            for who, count in [(ALONE, 1), *itertools.product(here, (1, 2))]:
                settings = {
                    **usual,
                    "collector": who,
                    "workers": count,
                    "ray": place.ray if who == "ray" else "",
                }
                found[row, who, count, repetition] = on_graphs_timed(
                    row=row, settings=tuple(settings.items()), test_graphs=0, repetition=repetition
                )
    return {**found, **core_runs(scale)}


def _scaling_data(results: Results, scale: Scale) -> Data:
    own = {key: each for key, each in results.items() if key[0] != "cores"}
    rows = [
        (*key, update, *times, each["data"], each["weights"])
        for key, each in own.items()
        for update, times in enumerate(zip(*(each["seconds"][phase] for phase in PHASES), strict=True), 1)
    ]
    names = [f"{phase}_seconds" for phase in PHASES]
    columns = ("row", "kind", "workers", "repetition", "update", *names, "data_sha256", "weights_sha256")
    share = min(each["made"]["cpu_share"] for key, each in own.items() if key[1] == ALONE)
    is_small = scale.share < SMALL
    facts = {"cpu_share": share, "graphs": 4 if is_small else 24, "max_steps": 5 if is_small else 15}
    return Data({"": frame(rows, *columns)}, {**facts, **core_facts(results)})


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
        "has_ray": "ray" in set(own["kind"]),
    }


def _sampler_runs(scale: Scale, place: Workplace) -> Runs:
    """By sampler and seed, without extra workers: parallel runs are faster than parallel workers."""
    is_small = scale.share < SMALL
    updates = scale.steps(400, least=5)
    # Six graphs, so that each of the three samplers in "heterogeneous" gets two.
    usual = {
        "groups": 6, "rollouts": 4, "max_steps": 4 if is_small else 15, "learning_rate": 1e-3,
        "warm_up": updates, "updates": updates,
    }  # fmt: skip
    return {
        (sampler, seed): on_graphs(
            row="mf",
            settings=tuple({**usual, "sampler": sampler, "seed": seed}.items()),
            test_graphs=4 if is_small else 24,
        )
        for sampler in SAMPLERS
        for seed in range(scale.seeds)
    }


def _sampler_data(results: Results, scale: Scale) -> Data:
    rows = [
        (*key, *each)
        for key, found in results.items()
        for each in zip(found["updates"], found["gains"], strict=True)
    ]
    counts = frame([(key[0], each["real_steps"]) for key, each in results.items()], "sampler", "steps")
    steps = {name: int(each["steps"].mean()) for name, each in counts.groupby("sampler", sort=False)}
    facts = {"real_steps": steps, "test_graphs": 4 if scale.share < SMALL else 24}
    return Data({"": frame(rows, "sampler", "seed", "update", "saved")}, facts)


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


#: By name, in the order of the report.
EXPERIMENTS: Mapping[str, Experiment] = {
    "scaling": Experiment(
        "Time of collection, broadcast and learning on graphs, by kind and number of workers",
        "Beside table 6.1 of Mayer 2023: the same on the task of this project",
        _scaling_runs, _scaling_data, _scaling_shown, "scaling",
    ),
    "samplers": Experiment(
        "Samplers of the free parameters of graphs",
        "Beside tables 6.2 and 6.3 of Mayer 2023: the same on the task of this project",
        _sampler_runs, _sampler_data, _sampler_shown, "samplers",
    ),
    "throughput": recorded(
        "Throughput of collection, beside TorchRL and Ray RLlib",
        "Asked of RLgraph's comparison with RLlib",
        _throughput_shown, "throughput",
    ),
}  # fmt: skip
