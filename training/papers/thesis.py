"""Tables 6.1 to 6.3 and figure 6.3 of the thesis: learning to optimise, by samplers and by workers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from training.papers import collecting, learn
from training.papers.experiment import THEIRS, Data, Experiment, Results, Runs, Shown, frame, lines
from training.papers.runner import Result, Run, Scale, Work, kind
from training.papers.stats import compared, mean_text
from training.samplers import HOMOGENEOUS, SAMPLERS

COUNTS = (1, 2, 4)  # of workers
STEPS_OF_TIMES, EPISODES_OF_TIMES = 500, 64  # steps take equally long, so timing a part of them is enough
THEIR_STEPS = 10_000
#: Function and steps.
SAMPLED = {"table6.2": ("ackley", 5_000), "table6.3": ("rosenbrock", 10_000)}
WINDOW = 1_000  # steps at the start and at the end that are compared
CURVES, STEPS_OF_CURVES = ("ackley", "rosenbrock"), 5_000


def _depends(**others: Any) -> str:
    settings = learn.LEARNER.settings(), HOMOGENEOUS, learn.POOL, learn.EVALUATE_EVERY
    return f"{settings} {learn.PARAMETERS} {learn.STARTS}"


def _learned(
    work: Work,
    function: str,
    sampler: str,
    drivers: int,
    episodes: int,
    seed: int,
    updates: int,
    workers: int,
) -> Result:
    """One run of the thesis."""
    task = learn.DriverTask(function, sampler, drivers, episodes)
    return dataclasses.asdict(learn.train(task, seed, updates, workers))


learned = kind(_depends, name="learned")(_learned)
learned_timed = kind(_depends, name="learned_timed", measures=True)(_learned)


def _run(function: str, seed: int, updates: int, **given: Any) -> Run:
    """A run with default arguments."""
    usual = {"sampler": "random", "drivers": 3, "episodes": 10, "workers": 1}
    of = learned_timed if given.pop("is_timed", False) else learned
    return of(function=function, seed=seed, updates=updates, **{**usual, **given})


def _time_runs(scale: Scale) -> Runs:
    """By function, workers and seed. Each driver plays one episode, as in the thesis's runs with as many."""
    given = {"is_timed": True, "drivers": EPISODES_OF_TIMES, "episodes": 1}
    found = {
        (function, count, seed): _run(function, seed, scale.steps(STEPS_OF_TIMES), workers=count, **given)
        for function in learn.FUNCTIONS
        for seed in range(scale.seeds)
        for count in COUNTS
    }
    return {**found, **collecting.core_runs(scale)}


def _time_data(results: Results, scale: Scale) -> Data:
    names = [f"{phase}_seconds" for phase in collecting.PHASES]
    rows = [
        (*key, *(each[name] for name in names), each["data"], each["weights"], each["made"]["cpu_share"])
        for key, each in results.items()
        if key[0] != "cores"
    ]
    columns = ("function", "workers", "seed", *names, "data_sha256", "weights_sha256", "cpu_share")
    facts = {"updates": scale.steps(STEPS_OF_TIMES), **collecting.core_facts(results)}
    return Data({"": frame(rows, *columns)}, facts)


def _time_shown(data: Data) -> Shown:
    own = data.main.assign(run=data.main["function"] + data.main["seed"].astype(str))
    table = collecting.phases(own.groupby("workers"), "mean")
    collect, broadcast = table["collect s"], table["broadcast s"]
    figure = table.plot.bar(stacked=True, rot=0, ylabel="seconds").figure
    table["rho"] = collect[1] / collect
    table["rho*"] = (collect[1] / (collect + broadcast)).where(table.index > 1, 1.0)
    table["data and weights as with 1"] = collecting.are_same(own, "run", ["workers"], (1,))
    theirs = pd.DataFrame(THEIRS["workers"], index=["theirs: collect s", "theirs: rho", "theirs: rho*"]).T
    table = table.join(theirs.set_index(theirs.index.astype(int))).reset_index()
    episodes = data.facts["updates"] * EPISODES_OF_TIMES
    return {"": figure}, {
        "table": table.astype({"theirs: collect s": int}),
        "episode_ms": 1000 * collect[1] / episodes,
        "their_episode_ms": 1000 * THEIRS["workers"]["1"][0] / THEIR_STEPS / EPISODES_OF_TIMES,
        "their_steps": THEIR_STEPS,
        "episodes": EPISODES_OF_TIMES,
        "seeds": own["seed"].nunique(),
        "cpu_share": own[own["workers"] == 1]["cpu_share"].min(),
    }


def _sampler_runs(name: str, scale: Scale) -> Runs:
    function, steps = SAMPLED[name]
    return {
        (sampler, seed): _run(function, seed, scale.steps(steps), sampler=sampler)
        for sampler in SAMPLERS
        for seed in range(scale.seeds)
    }


def _sampler_data(results: Results, scale: Scale) -> Data:
    rows = [
        (*key, *each)
        for key, found in results.items()
        for each in zip(found["updates"], found["errors"], strict=True)
    ]
    return Data({"": frame(rows, "sampler", "seed", "update", "error")})


def _sampler_shown(name: str, data: Data) -> Shown:
    function, steps = SAMPLED[name]
    own = data.main[data.main["update"] > 0]  # without the evaluation before training
    made = int(own["update"].max())
    window = max(10, round(WINDOW * made / steps))
    ends = {"first": own[own["update"] <= window], "last": own[own["update"] > made - window]}
    of_seed = {end: each.groupby(["sampler", "seed"], sort=False)["error"] for end, each in ends.items()}
    means = {end: each.mean() for end, each in of_seed.items()}
    best = own.groupby(["sampler", "seed"], sort=False)["error"].min()
    chosen = best.groupby("sampler", sort=False).idxmin()  # over the seeds, as in the thesis
    columns = [each for of in of_seed.values() for each in (of.mean(), of.var(ddof=0))]
    ours = pd.concat([*columns, best], axis="columns").loc[chosen].reset_index().drop(columns="seed")
    ours.columns = pd.Index(["sampler", "first: mean", "variance", "last: mean", "last: variance", "best"])
    intervals = pd.DataFrame(
        {end: each.groupby("sampler", sort=False).agg(mean_text) for end, each in means.items()}
    )
    tests = [
        compared({each: mean[each].to_numpy() for each in SAMPLERS}).assign(steps=end)
        for end, mean in means.items()
    ]
    grid = lines(own, "update", "error", hue="seed", col="sampler", col_wrap=2, palette="deep", aspect=1.5)
    grid.set(yscale="log")
    of = learn.FUNCTIONS[function]
    at_zero = of(np.array([[0.0, parameter] for parameter in learn.PARAMETERS]))
    least = np.array([learn.minimum(function, parameter) for parameter in learn.PARAMETERS])
    return {"": grid.figure}, {
        "theirs": frame([(each, *told) for each, told in THEIRS[name].items()], *ours.columns),
        "ours": ours,
        "intervals": intervals.reset_index(),
        "tests": pd.concat(tests),
        "error": "MSLE" if of.is_logarithmic else "MSE",
        "made": made, "steps": steps, "window": window, "their_window": WINDOW,
        "seeds": own["seed"].nunique(),
        "zero": of.error(at_zero, least),
    }  # fmt: skip


def _curve_runs(scale: Scale) -> Runs:
    steps = scale.steps(STEPS_OF_CURVES)
    return {
        (function, seed, how): run
        for function in CURVES
        for seed in range(scale.seeds)
        for how, run in (
            ("sequential", _run(function, seed, steps)),
            ("distributed", _run(function, seed, steps, workers=3)),
        )
    }


def _curve_data(results: Results, scale: Scale) -> Data:
    rows, hashes = [], []
    for function, seed in dict.fromkeys(key[:2] for key in results):
        alone, apart = (results[function, seed, how] for how in ("sequential", "distributed"))
        each = zip(alone["updates"], alone["errors"], apart["errors"], strict=True)
        rows += [(function, seed, *values) for values in each]
        same = [alone[what] == apart[what] for what in ("data", "weights")]
        hashes.append((function, seed, *same, alone["data"][:12]))
    main = frame(rows, "function", "seed", "update", "sequential", "distributed")
    columns = ("function", "seed", "same data", "same weights", "SHA-256 of the data")
    return Data({"": main, "hashes": frame(hashes, *columns)}, {"updates": scale.steps(STEPS_OF_CURVES)})


def _curve_shown(data: Data) -> Shown:
    hows = ["sequential", "distributed"]
    long = data.main.melt(["function", "seed", "update"], hows, "collected", value_name="error")
    grid = lines(long, "update", "error", hue="seed", style="collected", col="function", palette="deep")
    grid.set(yscale="log")
    apart = (data.main["sequential"] - data.main["distributed"]).abs().rename("largest difference")
    largest = apart.groupby([data.main["function"], data.main["seed"]]).max()
    table = data.frames["hashes"].join(largest, on=["function", "seed"])
    return {"": grid.figure}, {"table": table.replace({True: "yes", False: "NO"})}


def _sampled(name: str) -> Experiment:
    parts = functools.partial(_sampler_runs, name), _sampler_data, functools.partial(_sampler_shown, name)
    title = f"Samplers of start states on {SAMPLED[name][0].capitalize()}"
    return Experiment(title, f"Mayer 2023, table {name[5:]} and the figure beside it", *parts, "table6.2")


#: By name, in the order of the report.
EXPERIMENTS: Mapping[str, Experiment] = {
    "table6.1": Experiment(
        "Time of collection, broadcast and learning by number of workers",
        "Mayer 2023, table 6.1 and figures 6.1 and 6.2",
        _time_runs, _time_data, _time_shown, "table6.1",
    ),
    **{name: _sampled(name) for name in SAMPLED},
    "fig6.3": Experiment(
        "Sequential and distributed learning curves", "Mayer 2023, figures 6.3 and 6.4",
        _curve_runs, _curve_data, _curve_shown, "fig6.3",
    ),
}  # fmt: skip
