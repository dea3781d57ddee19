"""The dissertation's figures of trained agents: model-free MF, and WM, which learns in a world model."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns

from training.papers import rows, toy_bert, worlds
from training.papers.experiment import (
    THEIRS,
    Data,
    Experiment,
    Results,
    Runs,
    Shown,
    bars,
    frame,
    levels,
    lines,
)
from training.papers.graphs import BERT, TITLES, bert, trained_on
from training.papers.logs import (
    PLANS,
    best_of,
    even,
    last_fifth,
    log_of,
    normalised,
    of_rows,
    random_of,
    trained,
)
from training.papers.rows import AGAIN
from training.papers.runner import EXECUTORS, Scale
from training.papers.stats import half_width, mean_text, median_interval

PROGRESS = (
    "mean_return", "best_return", "real_steps", "imagined_steps", "cpu_seconds", "policy_loss", "value_loss",
)  # fmt: skip
AXES = {"epoch": "epochs", "real_steps": "real steps", "cpu_seconds": "processor seconds"}
ENOUGH = 0.95  # of MF's final reward
SMOOTHING = 3  # updates in the moving mean used to find when a level is reached


def _episodes(row: str) -> int:
    """Real episodes per update when training on one graph."""
    config = rows.config_of(row, BERT)
    return config.groups * config.rollouts


# Figures 4.3 and 4.7: predicted and measured latencies of each row's plan for each graph.


def _latency_data(row: str, results: Results, scale: Scale) -> Data:
    found: list[tuple[Any, ...]] = []
    for graph in trained_on(scale):
        measured, gains = results["latency", graph], results["rivals", graph]["gains"]
        mine = [each["played"]["best"] for each in of_rows(results, row, graph).values()]
        for plan in ("greedy", "taso", f"random {row}", "agent", row, AGAIN):
            saved = mine if plan == row else [gains.get(plan, 0.0)]
            told = float(np.mean(saved)), half_width(saved)
            # Several seeds add no rounds: their plans were measured at the same time.
            names = [f"{row} {seed}" for seed in range(scale.seeds)] if plan == row else [plan]
            for executor in EXECUTORS:
                ratios = np.median([rows.ratios(measured, executor, name) for name in names], axis=0)
                found += [(graph, plan, executor, at, float(each), *told) for at, each in enumerate(ratios)]
    columns = ("graph", "plan", "executor", "round", "ratio", "predicted_gain", "predicted_half")
    made = rows.updates_made(of_rows(results, row).values())
    return Data({"": frame(found, *columns)}, {"updates": made, "seeds": scale.seeds})


def _latency_shown(row: str, data: Data) -> Shown:
    own = data.main.replace({"plan": {"random": f"random {row}", **PLANS}}).replace({"plan": PLANS})
    own["faster, %"] = 100 * (own["ratio"] - 1)
    told = own.groupby(["graph", "plan", "executor"], sort=False)["ratio"].agg(
        lambda ratios: "{:.3f}x ({:.3f} to {:.3f})".format(*median_interval(ratios.tolist()))
    )
    table = told.unstack("executor").rename(columns=lambda executor: f"measured, {executor}")
    firsts = own.drop_duplicates(["graph", "plan"])
    half = " ± {:.1f}" if data.facts["seeds"] > 1 else ""
    shares = zip(100 * firsts["predicted_gain"], 100 * firsts["predicted_half"], strict=True)
    table.insert(0, "predicted time saved", [("{:.1f} %" + half).format(*each) for each in shares])
    table = table.reset_index()
    theirs = table["graph"].map(THEIRS["saved_by_wm"]).where((table["plan"] == "WM") & (row == "wm"), "")
    table["theirs, of TensorFlow's time"] = theirs.fillna("")
    table["graph"], own["graph"] = table["graph"].map(TITLES), own["graph"].map(TITLES)
    grid = bars(
        own, "faster, %", "graph", hue="plan", col="executor", estimator="median", orient="h", aspect=1,
        height=1.5 + own["graph"].nunique(),
    )  # fmt: skip
    return {"": grid.figure}, {"table": table, "row": rows.TITLES[row], "drawn": rows.DRAWN}


# Figure 4.4: reward of MF; figure 4.6: the same for each reward and for the grid of alpha and beta.


def _reward_data(results: Results, scale: Scale) -> Data:
    own = even(log_of(results, "mf", "mean_return")).rename(columns={"mean_return": "mean_reward"})
    own["epoch"] = own.groupby(["graph", "seed"]).cumcount() + 1
    own["normalised"] = own.groupby("graph")["mean_reward"].transform(normalised)
    facts = {"updates": rows.updates_made(of_rows(results, "mf").values())}
    return Data({"": own, "rivals": random_of(results).loc[["mf"]]}, facts)


def _reward_shown(data: Data) -> Shown:
    own = data.main.assign(graph=data.main["graph"].map(TITLES))
    rivals = data.frames["rivals"].set_index(data.frames["rivals"]["graph"].map(TITLES))[["random", "greedy"]]
    found = []
    for graph, log in own.groupby("graph", sort=False):
        late = last_fifth(log)["mean_reward"]
        told = (log[log["epoch"] == 1]["mean_reward"].mean(), late.mean(), late.std(ddof=0))
        found.append((graph, *told, *rivals.loc[graph].astype(float)))
    grid = lines(own, "epoch", "mean_reward", col="graph", col_wrap=3)
    for graph, panel in grid.axes_dict.items():
        levels(panel, {"random play": rivals.loc[graph, "random"], "greedy": rivals.loc[graph, "greedy"]})
    header = ("graph", "first epoch", "last fifth", "its deviation", "random play", "greedy")
    return {"": grid.figure}, {"table": frame(found, *header), "episodes": _episodes("mf")}


def _grid_runs(scale: Scale) -> Runs:
    return {**rows.by_reward(scale), **rows.rivals_on(scale, bert(scale))}


def _grid_data(results: Results, scale: Scale) -> Data:
    own = {key[1:]: each for key, each in results.items() if key[0] == "reward"}
    found = [
        (name, seed, epoch, earned, 100 * float(np.mean(each["played"]["gains"])))
        for (name, seed), each in own.items()
        for epoch, earned in enumerate(each["log"]["mean_return"], 1)
    ]
    table = even(frame(found, "reward", "seed", "epoch", "mean_reward", "time_saved_at_the_end"), "reward")
    table.insert(4, "normalised", table.groupby("reward")["mean_reward"].transform(normalised))
    random, greedy = 100 * random_of(results).loc["mf", ["random", "greedy"]].astype(float)
    updates = rows.updates_made(own.values())
    facts = {"graph": TITLES[bert(scale)], "updates": updates, "random": random, "greedy": greedy}
    return Data({"": table}, facts)


def _grid_shown(data: Data) -> Shown:
    ends = data.main.drop_duplicates(["reward", "seed"]).rename(columns={"time_saved_at_the_end": "saved"})
    text = ends.groupby("reward")["saved"].agg(lambda saved: mean_text(saved, ".1f", " %"))
    named = [(name, made_of, text[name], theirs) for name, (made_of, theirs) in THEIRS["rewards"].items()]
    alphas = {rows.reward_at(alpha): alpha for alpha in rows.ALPHAS}
    grid = frame([(alpha, text[name]) for name, alpha in alphas.items()], "alpha", "time saved")
    curves = data.main[data.main["reward"].isin(THEIRS["rewards"])].rename(
        columns={"epoch": "at", "normalised": "value"}
    )
    of_grid = ends[ends["reward"].isin(alphas)].rename(columns={"saved": "value"})
    of_grid["at"] = of_grid["reward"].map(alphas)
    both = pd.concat(
        [
            curves.assign(what="mean reward, by epoch"),
            of_grid.assign(what="time saved, by alpha", reward="grid"),
        ]
    )
    drawn = lines(both, "at", "value", hue="reward", col="what")
    levels(drawn.axes_dict["time saved, by alpha"], {name: data.facts[name] for name in ("random", "greedy")})
    rewards = frame(named, "reward", "made of", "time saved", "theirs")
    return {"": drawn.figure}, {"rewards": rewards, "grid": grid, "seeds": data.main["seed"].nunique()}


# Figure 4.10: both agents by epochs, real steps and seconds.


def _both_runs(scale: Scale) -> Runs:
    both = [rows.trainings(row, scale, bert(scale)) for row in rows.TITLES]
    return {**both[0], **both[1], **rows.rivals_on(scale, bert(scale))}


def _both_data(results: Results, scale: Scale) -> Data:
    logs = pd.concat(
        [log_of(results, row, *PROGRESS).assign(row=row) for row in rows.TITLES], ignore_index=True
    )
    policies = []
    for row in rows.TITLES:
        best = [each["played"]["best"] for each in of_rows(results, row).values()]
        rivals = random_of(results).loc[row, ["random", "greedy"]]
        policies.append((row, float(np.mean(best)), half_width(best), *rivals))
    frames = {
        "": logs[["row", "seed", "epoch", *PROGRESS]],
        "policies": frame(policies, "row", "best", "best_half", "random", "greedy"),
    }
    return Data(frames, {"graph": TITLES[bert(scale)]})


def _both_shown(data: Data) -> Shown:
    own, policies = data.main.copy(), data.frames["policies"].set_index("row")
    of_seed = own.groupby(["row", "seed"], sort=False)
    own["smooth"] = of_seed["mean_return"].transform(
        lambda earned: earned.rolling(SMOOTHING, min_periods=1).mean()
    )
    last, first = of_seed.last(), of_seed.first()
    level = ENOUGH * float(last.loc["mf", "smooth"].mean())
    reached = own[own["smooth"] >= level].groupby(["row", "seed"])[list(AXES)].first().reindex(last.index)
    count = own["seed"].nunique()
    half = " ± {:.2g}" if count > 1 else ""
    found = []
    for row, title in rows.TITLES.items():
        best = ("{:.4f}" + half).format(*policies.loc[row, ["best", "best_half"]])
        at = [
            ", ".join("never" if math.isnan(each) else f"{each:,.0f}" for each in reached.loc[row, axis])
            for axis in AXES
        ]
        steps = f"{last.loc[row, 'real_steps'].mean():,.0f}"
        told = first.loc[row, "mean_return"].mean(), *policies.loc[row, ["random", "greedy"]].astype(float)
        found.append((title, mean_text(last.loc[row, "smooth"], ".4f"), best, *at, steps, *told))
    alike = even(own, "row").replace({"row": rows.TITLES})
    for axis in ("real_steps", "cpu_seconds"):
        alike[axis] = alike.groupby(["row", "epoch"])[axis].transform("mean")
    long = pd.concat(
        [
            alike.assign(by=f"mean reward by {AXES[axis]}", at=alike[axis], value=alike["mean_return"])
            for axis in AXES
        ]
        + [alike.assign(by="loss of the value by epochs", at=alike["epoch"], value=alike["value_loss"])]
    )
    grid = lines(long, "at", "value", hue="row", col="by")
    random = {
        f"random play, {title}'s steps": policies.loc[row, "random"] for row, title in rows.TITLES.items()
    }
    levels(grid.axes.flat[0], {**random, "greedy": policies.loc["mf", "greedy"]})
    header = (
        "row", "reward at the end", "best plan", *(f"{each} to the level" for each in AXES.values()),
        "real steps altogether", "reward of the first epoch", "random play", "greedy",
    )  # fmt: skip
    episodes = {title: _episodes(row) for row, title in rows.TITLES.items()}
    context = {"table": frame(found, *header), "level": level, "episodes": episodes, "seeds": count}
    return {"": grid.figure}, {**context, "enough": ENOUGH}


# Figure 4.11: which substitutions are applied, and the time of a step.


def _every_run(scale: Scale) -> Runs:
    return {**rows.trainings("mf", scale), **trained("wm", scale)}


def _applied_data(results: Results, scale: Scale) -> Data:
    found: list[tuple[Any, ...]] = []
    for graph in trained_on(scale):
        plans = {title: best_of(results, row, graph)[1] for row, title in rows.TITLES.items()}
        plans |= {PLANS[name]: results["rivals", graph]["plans"][name] for name in ("greedy", "taso")}
        for title, steps in plans.items():
            counts = Counter(name for name, _ in steps)
            found += [(graph, title, name, counts[name]) for name in sorted(counts)]
    return Data({"": frame(found, "graph", "plan", "substitution", "times")})


def _applied_shown(data: Data) -> Shown:
    own = data.main.assign(graph=data.main["graph"].map(TITLES))
    counts = own.pivot(index=["graph", "plan"], columns="substitution", values="times")
    plans = [*rows.TITLES.values(), "greedy", "TASO's search"]  # plans without steps appear too
    every = pd.MultiIndex.from_product([own["graph"].unique(), plans], names=["graph", "plan"])
    counts = counts.reindex(every).fillna(0).astype(int)
    found = []
    for key, row in counts.iterrows():
        most = row[row > 0].sort_values(ascending=False, kind="stable").head(2)
        told = ", ".join(f"{name} ({times})" for name, times in most.items()) or "none"
        found.append((*key, int((row > 0).sum()), int(row.sum()), told))
    grid = sns.clustermap(
        counts, row_cluster=False, col_cluster=False, annot=True, fmt="d", mask=counts == 0, cmap="Blues",
        cbar_pos=None, annot_kws={"size": 6}, xticklabels=True, yticklabels=True, dendrogram_ratio=0.01,
    )  # fmt: skip
    grid.ax_heatmap.tick_params(labelsize=6)
    header = ("graph", "plan of", "distinct substitutions", "steps", "most often")
    return {"": grid.figure}, {"table": frame(found, *header)}


def _step_data(results: Results, scale: Scale) -> Data:
    found = []
    for (row, graph, seed), each in of_rows(results).items():
        times = {f"environment_{row}": each["env_step_ms"], f"real_{row}": each["played"]["step_ms"]}
        if row == "wm":
            times |= {"imagined": each["imagined_alike_ms"], "imagined_batch": each["imagined_step_ms"]}
        found += [(graph, step, seed, ms) for step, ms in times.items()]
    return Data({"": frame(found, "graph", "step", "seed", "milliseconds")})


def _step_shown(data: Data) -> Shown:
    batch = rows.SETTINGS["wm"]["dream_batch"]
    titles = {
        "environment_mf": "the environment alone, MF, ms", "environment_wm": "the environment alone, WM, ms",
        "real_mf": "real, MF, ms", "real_wm": "real, WM, ms", "imagined": "imagined, ms",
        "imagined_batch": f"imagined, {batch} together, ms",
    }  # fmt: skip
    own = data.main.replace({"step": titles}).assign(graph=data.main["graph"].map(TITLES))
    means = own.pivot_table("milliseconds", "graph", "step", sort=False, dropna=False)[list(titles.values())]
    real, alone, imagined = (means[titles[name]] for name in ("real_wm", "environment_wm", "imagined"))
    means["real of WM by imagined"] = [f"{each:.0f}x" for each in real / imagined]
    means["observing and networks, of a real step of WM"] = [f"{each:.0%}" for each in 1 - alone / real]
    means["environment of WM by imagined"] = [f"{each:.1f}x" for each in alone / imagined]
    grid = bars(own, "graph", "milliseconds", hue="step")
    grid.set(yscale="log")
    return {"": grid.figure}, {"table": means.reset_index(), "drawn": rows.DRAWN, "batch": batch}


_MF, _WM = (functools.partial(trained, row) for row in rows.TITLES)
_MF_LATENCIES, _WM_LATENCIES = (
    (rows.latencies, functools.partial(_latency_data, row), functools.partial(_latency_shown, row))
    for row in rows.TITLES
)
_TABLE: tuple[tuple[str, str, str, tuple[Callable[..., Any], ...]], ...] = (
    ("fig4.3", "Latencies of what the model-free agent makes of each graph", "figure 4.3", _MF_LATENCIES),
    ("fig4.4", "Reward of the model-free agent per epoch", "figure 4.4", (_MF, _reward_data, _reward_shown)),
    ("fig4.6", "Rewards of the model-free agent", "figure 4.6", (_grid_runs, _grid_data, _grid_shown)),
    ("fig4.7", "Latencies of what the agent trained in a world model makes of each graph",
     "figure 4.7 and table 4.2", _WM_LATENCIES),
    ("fig4.8", "Loss of the world model over its training", "figure 4.8",
     (_WM, worlds.loss_data, worlds.loss_shown)),
    ("fig4.9", "What the world model promises, and what comes", "figure 4.9",
     (_WM, worlds.promise_data, worlds.promise_shown)),
    ("table4.3", "Temperature of the world model", "table 4.3",
     (worlds.temperature_runs, worlds.temperature_data, worlds.temperature_shown)),
    ("fig4.10", "Both agents by epochs, real steps and seconds", "figure 4.10",
     (_both_runs, _both_data, _both_shown)),
    ("fig4.11", "Substitutions that are applied to each graph", "figure 4.11",
     (_every_run, _applied_data, _applied_shown)),
    ("step_times", "What a step takes, real and imagined", "section 4.3.3",
     (_every_run, _step_data, _step_shown)),
    ("toy_bert", "How much of the toy BERT's time is saved", "tables 4.2 and 4.3",
     (toy_bert.bert_runs, toy_bert.bert_data, toy_bert.bert_shown)),
)  # fmt: skip
#: By name, in the order of the report.
EXPERIMENTS: Mapping[str, Experiment] = {
    name: Experiment(
        title,
        f"Parker 2021, {source}",
        *parts,
        template="fig4.3" if name == "fig4.7" else name,
        is_of_rows=True,
        is_of_bert=name in ("fig4.6", "table4.3", "fig4.10", "toy_bert"),
    )
    for name, title, source, parts in _TABLE
}
