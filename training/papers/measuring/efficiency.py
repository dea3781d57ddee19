"""Sample efficiency on graphs whose spaces are too large to measure completely: measured on demand."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from torchrlopt import _C
from torchrlopt.errors import RlOptError
from torchrlopt.executors.registry import Lowered
from torchrlopt.machine.profiling import Source
from torchrlopt.substitutions import load_library
from training.config import Config
from training.device.prices import cost_of, typical_prices
from training.dream_trainer import RANDOM_UPDATES
from training.episodes.answers import Answers
from training.graphs.fingerprint import fingerprint
from training.papers.experiment import Data, Experiment, Results, Runs, Shown, frame
from training.papers.measuring.asking import (
    EXPANSIONS,
    FREE,
    HOW,
    MOST_STEPS,
    MOST_TRIES,
    ORDERS,
    Space,
    ask,
    least_seconds,
    of_space,
    ratios,
)
from training.papers.measuring.measurements import (
    FAILED,
    LEARNERS,
    LEAST_UPDATES,
    TITLES,
    Key,
    drawn,
    learner_config,
    percents,
    tests_of,
    train_by,
)
from training.papers.measuring.subjects import QUICK, STACKS, SUBJECTS
from training.papers.runner import EXECUTORS, Result, Run, Scale, Work, kind, measured
from training.papers.stats import percent_text

DEMAND_ROWS = (*FREE, "price", "belief", *LEARNERS)
DEMAND_BUDGETS = (10, 30, 100, 300, 1_000, 3_000)
DEMAND_PAIRS = (
    ("mf", "random_macros"), ("mf", "price"), ("wm", "random_play"), ("wm", "mf"),
    ("wm_plus", "random_play"), ("wm_plus", "mf"), ("belief", "price"),
)  # fmt: skip
TOGETHER = 40  # graphs that are kept lowered at the same time
AGAIN = 2  # extra blocks for the fastest graph so far: the minimum of many noisy times is biased
_POOL = 2.0  # graphs in the pool per allowed measurement
_EPISODES = 2.0  # episodes per measurement, at most: episodes that end with known graphs measure nothing


class OnDemand(Answers):
    """Measures graphs on demand; times of known graphs are cached.

    A time is the minimum over a block of calls, as a share of that of the surrounding blocks of the first
    graph. A graph that seems to be the fastest so far is timed again, and the median counts as one
    measurement.

    Args:
        source: the model.
        executor: runs the graphs.
        is_at_end: see `Answers`.
    """

    def __init__(self, source: Source, executor: str, is_at_end: bool = False) -> None:
        super().__init__({}, load_library().names, is_at_end=is_at_end)
        self.source, self.executor = source, executor
        self.bests: list[dict[str, Any]] = []
        self.seconds = 0.0  # spent on lowering and measuring
        self._known: dict[str, float] = {}
        self._first = source.lower(source.program.graph, executor)

    def time(self, graph: _C.Graph) -> float:
        """Time of a graph as a share of the first one's; `FAILED` if the executor does not run it."""
        key = fingerprint(graph)
        if key not in self._known:
            began = time.perf_counter()
            self.asked[key] = None
            self._known[key] = self._measure(graph)
            if not self.bests or self._known[key] < self.bests[-1]["told"]:
                best = {"measurements": len(self.asked), "told": self._known[key], "text": graph.text()}
                self.bests.append(best)
            self.seconds += time.perf_counter() - began
        return self._known[key]

    def best_after(self, measurements: int) -> dict[str, Any]:
        """The choice after this many measurements, even if fewer were needed to find it."""
        best = [best for best in self.bests if best["measurements"] <= measurements][-1]
        return {**best, "measurements": measurements}

    def _measure(self, graph: _C.Graph) -> float:
        try:
            lowered = self.source.lower(graph, self.executor)
            found = ratios(lowered, self._first, self.source, 1)
            if self.bests and found[0] < self.bests[-1]["told"]:
                found += ratios(lowered, self._first, self.source, AGAIN)
            return float(np.median(found))
        except RlOptError:
            return FAILED


def told_of_space(subject: str, executor: str, **others: Any) -> str:
    """Everything that measured times of a subject's graphs depend on."""
    return f"{measured(executor=executor)} {HOW} {SUBJECTS[subject]}"


def demand_config(row: str, subject: str, seed: int, most: int) -> Config:
    """Settings of a row trained on demand, with reward R5, whose steps add up to the episode's saving."""
    config = learner_config(row, subject, seed, max_steps=MOST_STEPS, reward="R5")
    updates = max(LEAST_UPDATES, round(_EPISODES * most / (config.groups * config.rollouts)))
    return dataclasses.replace(config, updates=updates)


def _of_demand(row: str, subject: str, executor: str, seed: int, budgets: Sequence[int]) -> str:
    told = f"{MOST_STEPS} {MOST_TRIES} {_POOL} {EXPANSIONS} {AGAIN} {FAILED}"
    settings = demand_config(row, subject, seed, budgets[-1]).settings() if row in LEARNERS else told
    return f"{settings} {told_of_space(subject, executor)}"


@kind(_of_demand, measures=True, own_process=True)
def demand(work: Work, row: str, subject: str, executor: str, seed: int, budgets: Sequence[int]) -> Result:
    """Let one row measure graphs of one model; returns its choice after each of the budgets.

    It stops at the last budget; a trained row completes its update first, but the surplus does not count.
    """
    began = time.perf_counter()
    source = SUBJECTS[subject].source()
    graph, most = source.program.graph, budgets[-1]
    machine = OnDemand(source, executor, is_at_end=row in LEARNERS)
    real_steps = 0
    if row in LEARNERS:
        real_steps = train_by(demand_config(row, subject, seed, most), executor, graph, machine, most)
    else:
        given = graph, load_library(), cost_of(typical_prices(executor))
        rng = np.random.default_rng(seed)
        if row in FREE:
            ask(FREE[row](*given, rng), machine, most)
        else:
            pool = Space.pool(*given, round(_POOL * most))
            ask(of_space(ORDERS[row](pool, given[2], rng), pool), machine, most)
    return {
        "chosen": [machine.best_after(budget) for budget in budgets],
        "measured": len(machine.asked),
        "real_steps": real_steps,  # for WM and WM+ including the unmeasured ones that train the encoder
        "seconds": time.perf_counter() - began,
        "measuring_seconds": machine.seconds,
    }


@kind(lambda subject, executor, **others: told_of_space(subject, executor), measures=True, own_process=True)
def chosen_times(work: Work, subject: str, executor: str, blocks: int) -> Result:
    """Time all rows' choices with fresh calls: alternating, each next to the first graph.

    "blocks" holds, by fingerprint, the time of each block of calls as a share of the surrounding first
    graph's.
    """
    source = SUBJECTS[subject].source()
    first = source.lower(source.program.graph, executor)
    texts = dict.fromkeys(chosen["text"] for each in work.needed for chosen in each["chosen"])
    graphs = {fingerprint(graph): graph for graph in map(_C.parse_graph, texts)}
    found: dict[str, list[float]] = {key: [] for key in graphs}
    keys = list(graphs)
    for begin in range(0, len(keys), TOGETHER):
        together: dict[str, Lowered] = {}
        for key in keys[begin : begin + TOGETHER]:
            try:
                together[key] = source.lower(graphs[key], executor)
                least_seconds(together[key], source)
            except RlOptError:
                together.pop(key, None)
                found[key].append(FAILED)
        for _ in range(blocks):
            for key, call in together.items():
                found[key] += ratios(call, first, source, 1)
    first_s = [least_seconds(first, source) for _ in range(blocks)]
    return {"blocks": found, "first_ms": 1e3 * float(np.median(first_s))}


def _halves(blocks: Sequence[float]) -> tuple[float, float]:
    """Medians of the even-numbered blocks and of the odd-numbered ones, which are reported."""
    return float(np.median(blocks[::2])), float(np.median(blocks[1::2] or blocks))


def true_time(found: Result, text: str) -> float:
    """True time of a chosen graph."""
    return _halves(found["blocks"][fingerprint(_C.parse_graph(text))])[1]


def true_fastest(found: Result) -> float:
    """True time of the graph that is fastest by the other blocks, which avoids selecting the luckiest one."""
    return min(map(_halves, found["blocks"].values()))[1]


def _demand_runs(scale: Scale) -> Runs:
    """By row, subject, executor and seed, and by ("times", subject, executor)."""
    is_small = scale.share < 0.005
    most = scale.steps(DEMAND_BUDGETS[-1])
    budgets = tuple(each for each in DEMAND_BUDGETS if each <= 1.05 * most)  # a third of 3,000 is 1,000
    found: dict[Any, Run] = {}
    for executor in EXECUTORS[:1] if is_small else EXECUTORS:
        for subject in [QUICK] if is_small else STACKS:
            own = {
                (row, subject, executor, seed): demand(
                    row=row, subject=subject, executor=executor, seed=seed, budgets=budgets
                )
                for seed in range(scale.seeds)
                for row in DEMAND_ROWS
            }
            times = chosen_times(
                *own.values(), subject=subject, executor=executor, blocks=2 if is_small else 20
            )
            found |= {**own, ("times", subject, executor): times}
    return found


def _demand_data(results: Results, scale: Scale) -> Data:
    times = {key[1:]: each for key, each in results.items() if key[0] == "times"}
    asked = {key: each for key, each in results.items() if key[0] != "times"}
    rows = []
    for key, each in asked.items():
        found = times[key[1:3]]
        for chosen in each["chosen"]:
            true = true_time(found, chosen["text"])
            count = min(each["measured"], chosen["measurements"])
            run = each["real_steps"], each["seconds"], each["measuring_seconds"]
            slower = true / true_fastest(found) - 1
            rows.append((*key, chosen["measurements"], count, chosen["told"], true, slower, *run))
    about = []
    for key, found in times.items():
        several = [_halves(each) for each in found["blocks"].values() if len(each) > 1]
        noise = float(np.median([abs(one / other - 1) for one, other in several]))
        last = [each["chosen"][-1] for own, each in asked.items() if own[1:3] == key]
        luck = float(np.median([true_time(found, each["text"]) / each["told"] - 1 for each in last]))
        failed = sum(each == [FAILED] for each in found["blocks"].values())
        about.append(
            (*key, len(found["blocks"]), found["first_ms"], true_fastest(found), noise, luck, failed)
        )
    columns = (
        *Key, "measurements", "measured", "told", "true", "slower_than_best", "real_steps_of_run",
        "seconds_of_run", "measuring_seconds_of_run",
    )  # fmt: skip
    graphs = frame(about, "graph", "executor", "chosen", "first_ms", "best", "noise", "luck", "failed")
    return Data({"": frame(rows, *columns), "graphs": graphs})


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
            .reindex(DEMAND_ROWS)
        )
        table = table.rename(index=TITLES, columns=lambda n: f"after {n}").rename_axis("slower than the best")
        tables[executor] = table.reset_index()
        ends = 100 * last[last["executor"] == executor].pivot_table(
            "slower_than_best", "row", "graph", aggfunc=["mean", "min", "max"], sort=False
        ).reindex(DEMAND_ROWS)  # fmt: skip
        texts = {
            name: [
                f"{ends['mean'][name][row]:.1f} %"
                + (
                    f" ({ends['min'][name][row]:.1f} to {ends['max'][name][row]:.1f})"
                    if own["seed"].nunique() > 1
                    else ""
                )
                for row in DEMAND_ROWS
            ]
            for name in dict.fromkeys(mine["graph"])
        }
        by_graph[executor] = pd.DataFrame({"row": [TITLES[row] for row in DEMAND_ROWS], **texts})
    once = last.groupby("row", sort=False)
    costs = [
        (TITLES[row], int(each["measured"].min()), int(each["measured"].max()),
         f"{each['real_steps_of_run'].mean():,.0f}",
         f"{each['measuring_seconds_of_run'].sum() / each['seconds_of_run'].sum():.0%}")
        for row, each in once
    ]  # fmt: skip
    graphs = percents(data.frames["graphs"], "noise", "luck")
    graphs["best"] = graphs["best"].map("{:.3f}".format)
    config = demand_config("wm", QUICK, 0, 10)
    return {"": drawn(own, "slower_than_best", "best")}, {
        "graphs": graphs.rename(columns={"first_ms": "ms of the first", "failed": "not run"}),
        "tables": tables,
        "by_graph": by_graph,
        "last": int(own["measurements"].max()),
        "tests": tests_of(own, "slower_than_best", DEMAND_PAIRS, [int(own["measurements"].max())]),
        "costs": frame(
            costs, "row", "graphs measured, least", "most", "real steps", "of its time spent measuring"
        ),
        "random_episodes": RANDOM_UPDATES * config.groups * config.rollouts,
    }


EFFICIENCY = Experiment(
    "Rows at equal numbers of measurements, on graphs of several blocks",
    "Parker 2021, section 5 (sample efficiency), with measured latencies as rewards",
    _demand_runs,
    _demand_data,
    _demand_shown,
    "efficiency",
)
