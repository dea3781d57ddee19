"""The dissertation's question with measured latency as the reward: how many measurements does a row need?

Here every graph of the space was measured once, so that all rows see the same times and the fastest graph is
known; `efficiency` covers other spaces.
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
from training.device.prices import cost_of, typical_prices
from training.dream_trainer import RANDOM_UPDATES
from training.episodes.answers import Answers
from training.papers.experiment import Data, Experiment, Results, Runs, Shown, frame, lines
from training.papers.measuring.asking import (
    FREE,
    ORDERS,
    Floats,
    ask,
    of_space,
)
from training.papers.measuring.spaces import (
    FAILED,
    fastest_of,
    rebuilt,
    regret,
    space,
    told_of,
    true_of,
)
from training.papers.measuring.subjects import BLOCKS, QUICK
from training.papers.runner import EXECUTORS, Result, Run, Scale, Work, Workplace, kind, priced
from training.papers.stats import compared, percent_text
from training.train import trainer_of

#: Rows trained on measured times: arguments in addition to those of every run on one graph; 16 episodes per
#: update.
LEARNERS: Mapping[str, Mapping[str, Any]] = {
    "mf": {},
    "wm": {"model_batches": 20, "dream_batch": 128, "dream_updates": 5},
    "wm_plus": {"model_batches": 20, "dream_batch": 128, "dream_updates": 5},
}
LEAST_UPDATES = RANDOM_UPDATES + 2  # a world model's random updates, and two in which it learns
#: A row of the committed results that is not made any more: `belief` with the predictions of networks, fitted
#: to earlier measurements, instead of prices as the prior mean.
FORETOLD = "foretold"
TITLES: Mapping[str, str] = {
    "random": "any order",
    "random_play": "random play, single steps",
    "random_macros": "random play, MF's steps",
    "best_first": "best first, measured",
    "price": "top k by price",
    "belief": "model of prices",
    FORETOLD: "the same, pre-trained",
    "mf": "MF",
    "wm": "WM",
    "wm_plus": "WM+",
}
ROWS = ("random", "price", "best_first", "belief", *LEARNERS)
BUDGETS = (1, 3, 10, 30, 100, 300)
COMPARED_AT, CLOSE = (30, 100), 0.02
PAIRS = (("wm", "mf"), ("wm_plus", "mf"), ("belief", "price"), (FORETOLD, "belief"))
#: Updates of a full training; an update of "wm" and "wm_plus" takes longer.
UPDATES = {"mf": 400, "wm": 120, "wm_plus": 120}

Key = ["row", "graph", "executor", "seed"]


def learner_config(row: str, subject: str, seed: int, **given: Any) -> Config:
    """Arguments of a training on one graph with measured times."""
    return Config.of_row(row, graph=subject, seed=seed, **given, **LEARNERS[row])


def train_by(
    config: Config, executor: str, graph: _C.Graph, machine: Answers, most: int | None = None
) -> int:
    """Train a row on measured times until it has made enough measurements; returns its number of steps."""
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {"prices": typical_prices(executor), "graph": graph, "answers": machine}
        trainer = trainer_of(config, Path(folder), **given)
        for _ in trainer.updates():
            if most is not None and len(machine.asked) >= most:
                break
    return trainer.real_steps


@kind(lambda executor, **others: priced(executor=executor))
def asking(work: Work, row: str, subject: str, executor: str, seed: int, updates: int) -> Result:
    """Let one row measure graphs of a space, without a limit: their positions, each once, in order.

    Args:
        work: needs the space.
        row: one of `ROWS`.
        subject: whose space it is.
        executor: ran the graphs.
        seed: of the row, and of the calls that make up each measurement.
        updates: of a trained row.
    """
    found = work.needed[0]
    machine = Answers(dict(zip(found["keys"], told_of(found, seed).tolist(), strict=True)), found["names"])
    real_steps = 0
    if row in LEARNERS:
        config = learner_config(row, subject, seed, updates=updates, max_steps=25)
        real_steps = train_by(config, executor, _C.parse_graph(found["first"]), machine)
    else:
        known, cost = rebuilt(found), cost_of(typical_prices(executor))
        rng = np.random.default_rng(seed)
        if row in FREE:
            asked = FREE[row](known.graphs[0], machine.library(), cost, rng)
        else:
            asked = of_space(ORDERS[row](known, cost, rng), known)
        ask(asked, machine, len(known.graphs))
    places = {key: place for place, key in enumerate(found["keys"])}
    return {"order": [places[key] for key in machine.asked], "real_steps": real_steps}


def _space_runs(scale: Scale) -> dict[tuple[str, str], Run]:
    is_small = scale.share < 0.05
    return {
        (subject, executor): space(subject=subject, executor=executor, blocks=2 if is_small else 8)
        for subject in ([QUICK] if is_small else BLOCKS)
        for executor in EXECUTORS
    }


def _asking_runs(scale: Scale, place: Workplace) -> Runs:
    """By ("space", subject, executor), and by row, subject, executor and seed."""
    spaces = _space_runs(scale)
    found: dict[Any, Run] = {("space", *key): run for key, run in spaces.items()}
    for row in ROWS:
        updates = scale.steps(UPDATES[row], LEAST_UPDATES) if row in LEARNERS else 0
        for (subject, executor), run in spaces.items():
            for seed in range(scale.seeds):
                given = {"subject": subject, "executor": executor, "seed": seed, "updates": updates}
                found[row, subject, executor, seed] = asking(run, row=row, **given)
    return found


def _asking_data(results: Results, scale: Scale) -> Data:
    spaces = {key[1:]: each for key, each in results.items() if key[0] == "space"}
    asked = {key: each for key, each in results.items() if key[0] != "space"}
    rows, every = [], []
    for key, each in asked.items():
        slower = regret(each["order"], spaces[key[1:3]], key[3])
        rows += [(*key, n, float(slower[n - 1]), each["real_steps"]) for n in BUDGETS if n <= len(slower)]
        every += [(*key, n, float(slower[min(n, len(slower)) - 1])) for n in BUDGETS]
        far = np.nonzero(slower > CLOSE)[0]
        # A row cannot know that it has reached a level: only the last arrival counts.
        needed = int(far[-1]) + 2 if len(far) else 1
        asked[key]["needed"] = needed if needed <= len(slower) else np.inf
    means = frame(every, *Key, "measurements", "slower").groupby(
        ["row", "executor", "measurements", "graph"], sort=False
    )
    told = means["slower"].mean().groupby(["row", "executor", "measurements"], sort=False).agg(list)
    reached = []
    for row in ROWS:
        for executor in EXECUTORS:
            needed = [each["needed"] for key, each in asked.items() if (key[0], key[2]) == (row, executor)]
            reached.append(
                (row, executor, float(np.median(needed)), int(np.isfinite(needed).sum()), len(needed))
            )
    about = []
    for key, found in spaces.items():
        true, told_once = true_of(found), told_of(found, 0)
        fastest = true[fastest_of(found)]
        last = true[int(np.argmin(told_once))] / fastest - 1
        noise = float(np.median(np.abs(told_once / true - 1)))
        sizes = (len(true), len(found["names"]), found["first_us"] / 1e3)
        about.append((*key, *sizes, fastest, true.max(), noise, last, len(found["reasons"])))
    graphs = {
        row: float(np.mean([len(each["order"]) for key, each in asked.items() if key[0] == row]))
        for row in LEARNERS
    }
    main = frame(rows, *Key, "measurements", "slower_than_fastest", "real_steps")
    texts = frame(
        [(*key, percent_text(each)) for key, each in told.items()],
        "row",
        "executor",
        "measurements",
        "slower",
    )
    columns = (
        "graph", "executor", "graphs", "substitutions", "first_ms", "fastest", "slowest", "noise",
        "all_measured",
        "failed",
    )  # fmt: skip
    return Data(
        {
            "": main,
            "means": texts,
            "reached": frame(reached, "row", "executor", "needed", "reached", "of"),
            "spaces": frame(about, *columns),
        },
        {"graphs": graphs, "of_space": float(np.mean([len(each["keys"]) for each in spaces.values()]))},
    )


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
        "tests": tests_of(
            data.main,
            "slower_than_fastest",
            [pair for pair in PAIRS if {*pair} <= {*shown}],
            COMPARED_AT,
        ),
        "trained": frame(trained, "row", "real steps", "graphs measured"),
        "random_episodes": RANDOM_UPDATES * config.groups * config.rollouts,
        "failed": FAILED,
    }


MEASUREMENTS = Experiment(
    "Measurements that each row needs",
    "Parker 2021, section 5 (sample efficiency), with measured latencies as rewards",
    _asking_runs,
    _asking_data,
    _asking_shown,
    "measurements",
)
