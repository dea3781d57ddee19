"""Figures 4.8 and 4.9 and table 4.3: the world model's loss, its predicted returns, and its temperature."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy import stats

from training.papers import rows
from training.papers.experiment import THEIRS, Data, Results, Runs, Shown, frame, levels, lines
from training.papers.graphs import TITLES, bert
from training.papers.logs import even, last_fifth, log_of, random_of
from training.papers.runner import Scale
from training.papers.stats import mean_text

LOSSES = ("mixture", "reward", "done", "mask", "count", "saving")
PROMISES = ("promised_return", "mean_return", "predicted_gain", "real_gain", "dream_return")


def loss_data(results: Results, scale: Scale) -> Data:
    """See `Experiment`."""
    names = [f"{part}_{loss}" for loss in LOSSES for part in ("model", "fresh")]
    others = ("fresh_gaussian", "mask_f1", "unchanged_f1", "reward_pearson")
    return Data({"": log_of(results, "wm", *names, *others)})


def loss_shown(data: Data) -> Shown:
    """See `Experiment`."""
    own = even(data.main).assign(graph=lambda log: log["graph"].map(TITLES))
    titles = {
        "model_mixture": "last, fitted", "fresh_mixture": "last, fresh", "fresh_gaussian": "one Gaussian",
        "mask_f1": "legal after a step, F1", "unchanged_f1": "the same if nothing changed",
    }  # fmt: skip
    means = own.groupby(["graph", "epoch"], sort=False)[list(titles)].mean().groupby("graph", sort=False)
    table = means.last().rename(columns=titles)
    table.insert(0, "first epoch, fresh", means["fresh_mixture"].first())
    long = own.melt(["graph", "seed", "epoch"], list(titles), "loss").replace({"loss": titles})
    long["of"] = np.where(long["loss"].str.contains("F1|nothing"), "F1", "negative log-likelihood")
    grid = lines(long, "epoch", "value", hue="loss", style="graph", col="of")
    return {"": grid.figure}, {"table": table.reset_index()}


def _gap(foretold: float, real: float) -> str:
    """How far the prediction is above or below the real mean, relative to it."""
    return f"{100 * (foretold - real) / max(1e-9, abs(real)):+.0f} %"


def promise_data(results: Results, scale: Scale) -> Data:
    """See `Experiment`."""
    rivals = random_of(results).loc[["wm"], ["graph", "random"]]
    return Data({"": log_of(results, "wm", *PROMISES), "rivals": rivals})


def promise_shown(data: Data) -> Shown:
    """See `Experiment`."""
    random = data.frames["rivals"].set_index("graph")["random"].rename(index=TITLES)
    own = even(data.main).assign(graph=lambda log: log["graph"].map(TITLES))
    titles = {
        "promised_return": "promised in the dream",
        "predicted_gain": "foretold of the real episodes",
        "mean_return": "real",
    }
    found = []
    for graph, log in own.groupby("graph", sort=False):
        last = last_fifth(log)
        told, same, came = (float(last[name].mean()) for name in titles)
        span = f"{last['promised_return'].min():.3g} to {last['promised_return'].max():.3g}"
        found.append((graph, told, span, same, came, _gap(told, came), _gap(same, came)))
    long = own.melt(["graph", "seed", "epoch"], list(titles), "what").replace({"what": titles})
    grid = lines(long, "epoch", "value", hue="what", col="graph", col_wrap=3)
    for graph, panel in grid.axes_dict.items():
        levels(panel, {"random play, real": float(random[graph])})
    header = (
        "graph", "promised", "least to most", "foretold of the same episodes", "real", "gap of the dream",
        "gap, same episodes",
    )  # fmt: skip
    return {"": grid.figure}, {"table": frame(found, *header)}


def temperature_runs(scale: Scale) -> Runs:
    """See `Experiment`."""
    return {**rows.by_temperature(scale), **rows.rivals_on(scale, bert(scale))}


def temperature_data(results: Results, scale: Scale) -> Data:
    """See `Experiment`."""
    found = [
        (*key[1:], episode, *pair)
        for key, each in results.items()
        if key[0] == "temperature"
        for episode, pair in enumerate(zip(each["foretold"], each["real"], strict=True))
    ]
    facts = {
        "graph": TITLES[bert(scale)],
        "updates": scale.steps(rows.DREAM_UPDATES, rows.LEAST),
        "random": 100 * float(random_of(results).loc["wm", "random"]),
    }
    return Data({"": frame(found, "temperature", "seed", "episode", "foretold", "real")}, facts)


def temperature_shown(data: Data) -> Shown:
    """See `Experiment`."""
    scores = ["foretold", "real"]
    runs = 100 * data.main.groupby(["temperature", "seed"])[scores].mean()
    means = runs.groupby("temperature").mean()
    theirs = pd.DataFrame(THEIRS["temperatures"], index=["foretold", "foretold ±", "real", "real ±"]).T
    texts = runs.groupby("temperature").agg(lambda values: mean_text(values, ".2f", " %"))
    table = texts.assign(gap=[_gap(*each) for each in means.to_numpy()])
    for name in scores:
        pairs = zip(theirs[name], theirs[f"{name} ±"], strict=True)
        table[f"theirs: {name}"] = [f"{mean:.2f} % ± {deviation:g}" for mean, deviation in pairs]
    taus = [stats.kendalltau(*each[scores].T.to_numpy()).statistic for each in (means, theirs, runs)]
    long = runs.reset_index().melt(["temperature", "seed"], var_name="score", value_name="time saved, %")
    grid = lines(long, "temperature", "time saved, %", hue="score", aspect=1.5)
    levels(grid.ax, {"random play, real": data.facts["random"]})
    return {"": grid.figure}, {
        "table": table.reset_index(),
        "rank": frame([("over the temperatures", *taus[:2]), ("over all runs", taus[2], math.nan)],
                      "Kendall's tau of foretold and real", "ours", "theirs"),
        "gaps": [_gap(*runs.mean()), _gap(*theirs[scores].mean())],
        "seeds": data.main["seed"].nunique(),
    }  # fmt: skip
