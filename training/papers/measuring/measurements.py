"""The dissertation's question with measured latency as the reward: how many measurements does a row need?

In the committed results of `measurements` every graph of ten small spaces was measured once, so that all rows
saw the same times and the fastest graph was known. It is only drawn: `efficiency` asks the same on graphs
that leave something to be found, and what it shares with `measurements` is here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from torchrlopt import _C
from training.config import Config
from training.device.prices import typical_prices
from training.dream_trainer import RANDOM_UPDATES
from training.episodes.answers import Answers
from training.papers.experiment import Data, Shown, frame, lines, recorded
from training.papers.measuring.asking import Floats
from training.papers.measuring.subjects import QUICK
from training.papers.stats import compared
from training.train import trainer_of

#: Rows trained on measured times: arguments in addition to those of every run on one graph; 16 episodes per
#: update.
LEARNERS: Mapping[str, Mapping[str, Any]] = {
    "mf": {},
    "wm": {"model_batches": 20, "dream_batch": 128, "dream_updates": 5},
    "wm_plus": {"model_batches": 20, "dream_batch": 128, "dream_updates": 5},
}
FAILED = 10.0  # time of a graph that the executor does not run, as a share of the first one's
LEAST_UPDATES = RANDOM_UPDATES + 2  # a world model's random updates, and two in which it learns
TITLES: Mapping[str, str] = {
    "random": "any order",
    "random_play": "random play, single steps",
    "random_macros": "random play, MF's steps",
    "best_first": "best first, measured",
    "price": "top k by price",
    "belief": "model of prices",
    "foretold": "the same, pre-trained",  # `belief` with the predictions of networks as the prior mean
    "mf": "MF",
    "wm": "WM",
    "wm_plus": "WM+",
}
COMPARED_AT, CLOSE = (30, 100), 0.02
PAIRS = (("wm", "mf"), ("wm_plus", "mf"), ("belief", "price"), ("foretold", "belief"))

Key = ["row", "graph", "executor", "seed"]


def learner_config(row: str, subject: str, seed: int, **given: Any) -> Config:
    """Arguments of a training on one graph with measured times."""
    return Config.of_row(row, graph=subject, seed=seed, **given, **LEARNERS[row])


def train_by(config: Config, executor: str, graph: _C.Graph, machine: Answers, most: int) -> int:
    """Train a row on measured times until it has made enough measurements; returns its number of steps."""
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {"prices": typical_prices(executor), "graph": graph, "answers": machine}
        trainer = trainer_of(config, Path(folder), **given)
        for _ in trainer.updates():
            if len(machine.asked) >= most:
                break
    return trainer.real_steps


def percents(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Convert some columns to percent."""
    return table.assign(**{name: table[name].map("{:.1%}".format) for name in columns})


def drawn(data: pd.DataFrame, value: str, than: str) -> Figure:
    """A panel per executor, a line per row; solid lines are trained rows."""
    keys = ["row", "executor", "graph", "measurements"]
    means = (100 * data.groupby(keys, sort=False)[value].mean()).reset_index()
    means["trained"] = means["row"].isin(LEARNERS)
    means["row"] = means["row"].map(TITLES)
    grid = lines(
        means, "measurements", value, hue="row", style="trained", style_order=[True, False], col="executor",
        errorbar=None, marker="o", aspect=1.3,
    )  # fmt: skip
    for panel in grid.axes.flat:
        panel.set_xscale("log")
        panel.set_yscale("symlog", linthresh=1)
    grid.set_axis_labels("measured graphs", f"% slower than the {than}")
    return grid.figure


def tests_of(
    data: pd.DataFrame, value: str, pairs: Sequence[tuple[str, str]], at: Sequence[int]
) -> pd.DataFrame:
    """Paired t tests over the graphs, in percent, after some numbers of measurements; corrected together."""
    columns: dict[str, Floats] = {}
    named: list[tuple[str, str]] = []
    for executor in dict.fromkeys(data["executor"]):
        for n in at:
            own = data[(data["executor"] == executor) & (data["measurements"] <= n)]
            last = own.sort_values("measurements", kind="stable").groupby(Key, sort=False)[value].last()
            means = 100 * last.groupby(["row", "graph"]).mean()
            label = f"{executor}, after {n}: " if len(at) > 1 else f"{executor}: "
            columns |= {
                label + TITLES[row]: means[row].to_numpy()
                for row in {each for pair in pairs for each in pair}
            }
            named += [(label + TITLES[one], label + TITLES[other]) for one, other in pairs]
    found = compared(columns, named)
    wins = [int((columns[one] < columns[other]).sum()) for one, other in named]
    count = [len(columns[one]) for one, _ in named]
    found.insert(5, "less on", [f"{won} of {every}" for won, every in zip(wins, count, strict=True)])
    return found.assign(other=[other.partition(": ")[2] for other in found["other"]])


def _steps(data: pd.DataFrame, column: str) -> pd.Series[float]:
    """Mean real steps of trained rows."""
    once = data.drop_duplicates(Key)
    return once[once["row"].isin(LEARNERS)].groupby("row", sort=False)[column].mean()


def _asking_shown(data: Data) -> Shown:
    frames = data.frames
    reached = frames["reached"].set_index(["row", "executor"])
    tables, shown = {}, list(dict.fromkeys(frames["means"]["row"]))
    for executor, own in frames["means"].groupby("executor", sort=False):
        table = own.pivot(index="row", columns="measurements", values="slower").reindex(shown)
        table = table.rename(columns=lambda n: f"after {n}")
        of_row = [reached.loc[(row, executor)] for row in shown]
        table[f"stays within {CLOSE:.0%} from"] = [
            f"{each['needed']:.0f}" if np.isfinite(each["needed"]) else "not" for each in of_row
        ]
        table["at the end"] = [f"{each['reached']:.0f} of {each['of']:.0f}" for each in of_row]
        tables[executor] = table.rename(index=TITLES).reset_index()
    spaces = percents(frames["spaces"], "noise", "all_measured")
    spaces["fastest"] = spaces["fastest"].map("{:.3f}".format)
    spaces["slowest"] = spaces["slowest"].map("{:.2f}".format)
    names = {"first_ms": "ms of the first", "all_measured": "all measured", "failed": "not run"}
    steps = _steps(data.main, "real_steps")
    trained = [(TITLES[row], f"{steps[row]:,.0f}", f"{data.facts['graphs'][row]:.0f}") for row in LEARNERS]
    config = learner_config("wm", QUICK, 0)
    return {"": drawn(data.main, "slower_than_fastest", "fastest")}, {
        "spaces": spaces.rename(columns=names),
        "tables": tables,
        "tests": tests_of(data.main, "slower_than_fastest", PAIRS, COMPARED_AT),
        "trained": frame(trained, "row", "real steps", "graphs measured"),
        "random_episodes": RANDOM_UPDATES * config.groups * config.rollouts,
        "failed": FAILED,
    }


MEASUREMENTS = recorded(
    "Measurements that each row needs",
    "Parker 2021, section 5 (sample efficiency), with measured latencies as rewards",
    _asking_shown,
    "measurements",
)
