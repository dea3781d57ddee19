"""What the committed results say about learning where each answer is a measurement.

Nothing is run. `measurements` and `efficiency` asked how many measured graphs each row needs if rewards are
measured latencies (Parker 2021, section 5): the first in ten small spaces in which every graph was measured,
the second on demand. `training.dear_precision` asks the same of types of calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from training.config import ONE_GRAPH
from training.dream_trainer import RANDOM_UPDATES
from training.papers.experiment import Data, Shown, frame, lines, recorded
from training.papers.stats import compared, percent_text
from training.precision.regret import table_of

_LEARNERS = ("mf", "wm", "wm_plus")
_FAILED = 10.0  # time of a graph that the executor does not run, as a share of the first one's
_TITLES: Mapping[str, str] = {
    "random": "any order",
    "random_play": "random play, single steps",
    "random_macros": "random play, MF's steps",
    "best_first": "best first, measured",
    "price": "top k by price",
    "belief": "model of prices",
    "foretold": "the same, pre-trained",  # `belief` with predictions of networks as the prior mean
    "mf": "MF",
    "wm": "WM",
    "wm_plus": "WM+",
}
_COMPARED_AT, _CLOSE = (30, 100), 0.02
_PAIRS = (("wm", "mf"), ("wm_plus", "mf"), ("belief", "price"), ("foretold", "belief"))
_DEMAND_ROWS = ("random_play", "random_macros", "best_first", "price", "belief", *_LEARNERS)
_DEMAND_PAIRS = (
    ("mf", "random_macros"), ("mf", "price"), ("wm", "random_play"), ("wm", "mf"),
    ("wm_plus", "random_play"), ("wm_plus", "mf"), ("belief", "price"),
)  # fmt: skip
_KEY = ["row", "graph", "executor", "seed"]
#: Episodes that a world model plays at random before any network plays.
_RANDOM_EPISODES = RANDOM_UPDATES * ONE_GRAPH["groups"] * ONE_GRAPH["rollouts"]


def _percents(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Convert some columns to percent."""
    return table.assign(**{name: table[name].map("{:.1%}".format) for name in columns})


def _drawn(data: pd.DataFrame, value: str, than: str) -> Figure:
    """A panel per executor, a line per row; solid lines are trained rows."""
    keys = ["row", "executor", "graph", "measurements"]
    means = (100 * data.groupby(keys, sort=False)[value].mean()).reset_index()
    means["trained"] = means["row"].isin(_LEARNERS)
    means["row"] = means["row"].map(_TITLES)
    grid = lines(
        means, "measurements", value, hue="row", style="trained", style_order=[True, False], col="executor",
        errorbar=None, marker="o", aspect=1.3,
    )  # fmt: skip
    for panel in grid.axes.flat:
        panel.set_xscale("log")
        panel.set_yscale("symlog", linthresh=1)
    grid.set_axis_labels("measured graphs", f"% slower than the {than}")
    return grid.figure


def _tests_of(
    data: pd.DataFrame, value: str, pairs: Sequence[tuple[str, str]], at: Sequence[int]
) -> pd.DataFrame:
    """Paired t tests over the graphs, in percent, after some numbers of measurements; corrected together."""
    columns: dict[str, np.ndarray] = {}
    named: list[tuple[str, str]] = []
    for executor in dict.fromkeys(data["executor"]):
        for n in at:
            own = data[(data["executor"] == executor) & (data["measurements"] <= n)]
            last = own.sort_values("measurements", kind="stable").groupby(_KEY, sort=False)[value].last()
            means = 100 * last.groupby(["row", "graph"]).mean()
            label = f"{executor}, after {n}: " if len(at) > 1 else f"{executor}: "
            columns |= {
                label + _TITLES[row]: means[row].to_numpy()
                for row in {each for pair in pairs for each in pair}
            }
            named += [(label + _TITLES[one], label + _TITLES[other]) for one, other in pairs]
    found = compared(columns, named)
    wins = [int((columns[one] < columns[other]).sum()) for one, other in named]
    count = [len(columns[one]) for one, _ in named]
    found.insert(5, "less on", [f"{won} of {every}" for won, every in zip(wins, count, strict=True)])
    return found.assign(other=[other.partition(": ")[2] for other in found["other"]])


def _steps(data: pd.DataFrame, column: str) -> pd.Series[float]:
    """Mean real steps of trained rows."""
    once = data.drop_duplicates(_KEY)
    return once[once["row"].isin(_LEARNERS)].groupby("row", sort=False)[column].mean()


def _measurements_shown(data: Data) -> Shown:
    frames = data.frames
    reached = frames["reached"].set_index(["row", "executor"])
    tables, shown = {}, list(dict.fromkeys(frames["means"]["row"]))
    for executor, own in frames["means"].groupby("executor", sort=False):
        table = own.pivot(index="row", columns="measurements", values="slower").reindex(shown)
        table = table.rename(columns=lambda n: f"after {n}")
        of_row = [reached.loc[(row, executor)] for row in shown]
        table[f"stays within {_CLOSE:.0%} from"] = [
            f"{each['needed']:.0f}" if np.isfinite(each["needed"]) else "not" for each in of_row
        ]
        table["at the end"] = [f"{each['reached']:.0f} of {each['of']:.0f}" for each in of_row]
        tables[executor] = table.rename(index=_TITLES).reset_index()
    spaces = _percents(frames["spaces"], "noise", "all_measured")
    spaces["fastest"] = spaces["fastest"].map("{:.3f}".format)
    spaces["slowest"] = spaces["slowest"].map("{:.2f}".format)
    names = {"first_ms": "ms of the first", "all_measured": "all measured", "failed": "not run"}
    steps = _steps(data.main, "real_steps")
    trained = [(_TITLES[row], f"{steps[row]:,.0f}", f"{data.facts['graphs'][row]:.0f}") for row in _LEARNERS]
    return {"": _drawn(data.main, "slower_than_fastest", "fastest")}, {
        "spaces": spaces.rename(columns=names),
        "tables": tables,
        "tests": _tests_of(data.main, "slower_than_fastest", _PAIRS, _COMPARED_AT),
        "trained": frame(trained, "row", "real steps", "graphs measured"),
        "random_episodes": _RANDOM_EPISODES,
        "failed": _FAILED,
    }


def _demand_shown(data: Data) -> Shown:
    own = data.main
    last = own[own["measurements"] == own["measurements"].max()]
    tables, by_graph = {}, {}
    for executor, mine in own.groupby("executor", sort=False):
        means = mine.groupby(["row", "measurements", "graph"], sort=False)["slower_than_best"].mean()
        table = (
            means.groupby(["row", "measurements"], sort=False)
            .agg(percent_text)
            .unstack()
            .reindex(_DEMAND_ROWS)
        )
        table = table.rename(index=_TITLES, columns=lambda n: f"after {n}").rename_axis(
            "slower than the best"
        )
        tables[executor] = table.reset_index()
        ends = 100 * last[last["executor"] == executor].pivot_table(
            "slower_than_best", "row", "graph", aggfunc=["mean", "min", "max"], sort=False
        ).reindex(_DEMAND_ROWS)  # fmt: skip
        texts = {
            name: [
                f"{ends['mean'][name][row]:.1f} %"
                + (
                    f" ({ends['min'][name][row]:.1f} to {ends['max'][name][row]:.1f})"
                    if own["seed"].nunique() > 1
                    else ""
                )
                for row in _DEMAND_ROWS
            ]
            for name in dict.fromkeys(mine["graph"])
        }
        by_graph[executor] = pd.DataFrame({"row": [_TITLES[row] for row in _DEMAND_ROWS], **texts})
    once = last.groupby("row", sort=False)
    costs = [
        (_TITLES[row], int(each["measured"].min()), int(each["measured"].max()),
         f"{each['real_steps_of_run'].mean():,.0f}",
         f"{each['measuring_seconds_of_run'].sum() / each['seconds_of_run'].sum():.0%}")
        for row, each in once
    ]  # fmt: skip
    graphs = _percents(data.frames["graphs"], "noise", "luck")
    graphs["best"] = graphs["best"].map("{:.3f}".format)
    return {"": _drawn(own, "slower_than_best", "best")}, {
        "graphs": graphs.rename(columns={"first_ms": "ms of the first", "failed": "not run"}),
        "tables": tables,
        "by_graph": by_graph,
        "last": int(own["measurements"].max()),
        "tests": _tests_of(own, "slower_than_best", _DEMAND_PAIRS, [int(own["measurements"].max())]),
        "costs": frame(
            costs, "row", "graphs measured, least", "most", "real steps", "of its time spent measuring"
        ),
        "random_episodes": _RANDOM_EPISODES,
    }


def _precision_shown(data: Data) -> Shown:
    times = data.main[data.main["metric"] == "time"]
    least = times.groupby("model", sort=False)["value"].min()
    return {}, {
        "table": table_of(data.main),
        "graphs": ", ".join(f"{name} {share:.2f}" for name, share in least.items()),
        "seeds": times["round"].nunique(),
    }


_SECTION_5 = "Parker 2021, section 5 (sample efficiency), with measured latencies as rewards"
MEASUREMENTS = recorded("Measurements that each row needs", _SECTION_5, _measurements_shown, "measurements")
EFFICIENCY = recorded(
    "Rows at equal numbers of measurements, on graphs of several blocks",
    _SECTION_5,
    _demand_shown,
    "efficiency",
)
DEAR_PRECISION = recorded(
    "Types of calls within an error budget: rows at equal numbers of measured answers",
    "Not in a paper: Parker 2021 asks in section 5 what learning brings where a step is expensive",
    _precision_shown,
    "dear_precision",
)
