"""The dissertation's question where no space can be measured as a whole: rows at equal measurements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from baselines.shared.paired import holm
from training.dream_trainer import RANDOM_UPDATES
from training.experiments.asking import learners
from training.experiments.asking.learners import FAILED, LEARNERS
from training.experiments.asking.regrets import Key, by_subject, executors_of, interval, of_executor, plot
from training.experiments.efficiency.asking_run import ROWS, Asked, AskingRun
from training.experiments.efficiency.subjects import QUICK, SUBJECTS
from training.experiments.efficiency.true_run import Times, TrueRun
from training.experiments.experiment import Cell, Experiment, Results, table, write_csv
from training.experiments.intervals import p_of
from training.experiments.runs import EXECUTORS, Run, Scale, Workplace

BUDGETS = (10, 30, 100, 300, 1_000, 3_000)
TITLES = {
    "random_play": "random play, single steps",
    "random_macros": "random play, MF's steps",
    **learners.TITLES,
}
_SMALL = 0.005  # share below which only a tiny graph is asked about, and only in eager
_BLOCKS = 20
#: What is compared after the last budget: each row with what says whether it has learnt, and with its rival.
PAIRS = (
    ("mf", "random_macros"), ("mf", "price"), ("wm", "random_play"), ("wm", "mf"),
    ("wm_plus", "random_play"), ("wm_plus", "mf"), ("belief", "price"),
)  # fmt: skip


def budgets(scale: Scale) -> tuple[int, ...]:
    """Numbers of measurements up to the share of the largest, which is rounded."""
    most = scale.steps(BUDGETS[-1])
    return tuple(each for each in BUDGETS if each <= 1.05 * most)  # a third of 3,000 is 1,000


def askings(scale: Scale) -> dict[Key, AskingRun]:
    """By row, subject, executor and seed."""
    is_small = scale.share < _SMALL
    subjects = (QUICK,) if is_small else tuple(name for name in SUBJECTS if name != QUICK)
    return {
        (row, subject, executor, seed): AskingRun(row, subject, executor, seed, budgets(scale))
        for executor in (EXECUTORS[:1] if is_small else EXECUTORS)
        for subject in subjects
        for seed in range(scale.seeds)
        for row in ROWS
    }


def true_runs(scale: Scale, place: Workplace) -> dict[tuple[str, str], TrueRun]:
    """By subject and executor."""
    own = askings(scale)
    return {
        (subject, executor): TrueRun(
            subject,
            executor,
            _BLOCKS if scale.share >= _SMALL else 2,
            tuple(run for key, run in own.items() if key[1:3] == (subject, executor)),
            place.out,
        )
        for subject, executor in dict.fromkeys(key[1:3] for key in own)
    }


def runs(scale: Scale, place: Workplace) -> list[Run[Any]]:
    """See `Experiment`."""
    return list(true_runs(scale, place).values())


def report(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    scale = results.scale
    found = {key: results.finished.outcome(run) for key, run in askings(scale).items()}
    times = {key: results.finished.outcome(run) for key, run in true_runs(scale, results.place).items()}
    regrets = {
        key: np.array([times[key[1:3]].of(each.text) / times[key[1:3]].fastest - 1 for each in asked.chosen])
        for key, asked in found.items()
    }
    write_csv(
        folder / "efficiency.csv",
        (
            "row", "graph", "executor", "seed", "measurements", "measured", "told", "true",
            "slower_than_best",
            "real_steps_of_run", "seconds_of_run", "measuring_seconds_of_run",
        ),
        [
            (
                *key, chosen.measurements, min(asked.measured, chosen.measurements), chosen.told,
                times[key[1:3]].of(chosen.text), float(regret), asked.real_steps, asked.seconds,
                asked.measuring_seconds,
            )
            for key, asked in found.items()
            for chosen, regret in zip(asked.chosen, regrets[key], strict=True)
        ],
    )  # fmt: skip
    plot(regrets, TITLES, budgets(scale), "best", folder / "efficiency.png")
    lines = ["![slower than the best](efficiency.png)", "", *_graphs(times, found), ""]
    for executor in executors_of(regrets):
        own = of_executor(regrets, executor)
        lines += [f"### {executor}", "", *_table(own, scale), "", *_by_graph(own, scale), ""]
    return [*lines, *_words(found, regrets, scale)]


def _graphs(times: Mapping[tuple[str, str], Times], found: Mapping[Key, Asked]) -> list[str]:
    """What was measured."""
    cells: list[tuple[Cell, ...]] = []
    failed = sum(blocks == [FAILED] for each in times.values() for blocks in each.blocks.values())
    for key, each in times.items():
        last = [asked.chosen[-1] for own, asked in found.items() if own[1:3] == key]
        luck = float(np.median([each.of(chosen.text) / chosen.told - 1 for chosen in last]))
        cells.append(
            (*key, len(each.blocks), each.first_ms, f"{each.fastest:.3f}", f"{each.noise:.1%}", f"{luck:.1%}")
        )
    return [
        "The best is the fastest of all graphs that a row chose after one of these numbers of measurements, "
        "by one half of calls that none was told of; how much slower a choice is, is told by the other half, "
        "and is negative where that has another order. Noise is the median difference of the two halves. The "
        "last column is by how much the choices after all measurements are slower than they were told to be: "
        "the least of many times is a lucky one.",
        "",
        *table(("graph", "executor", "chosen", "ms of the first", "best", "noise", "luck"), cells),
        *[f"\nThe executor did not run {failed} of the graphs that were chosen."] * bool(failed),
    ]


def _table(regrets: Mapping[Key, np.ndarray], scale: Scale) -> list[str]:
    """Mean regret by row and budget, with intervals over the graphs."""
    cells: list[tuple[Cell, ...]] = [
        (TITLES[row], *(interval(by_subject(regrets, row)[:, i]) for i in range(len(budgets(scale)))))
        for row in ROWS
    ]
    return table(("slower than the best", *(f"after {n}" for n in budgets(scale))), cells)


def _by_graph(regrets: Mapping[Key, np.ndarray], scale: Scale) -> list[str]:
    """The same of each graph after the last budget, with the range of the seeds."""
    subjects = list(dict.fromkeys(subject for _, subject, _, _ in regrets))

    def shown(row: str, subject: str) -> str:
        last = [each[-1] for key, each in regrets.items() if key[:2] == (row, subject)]
        spread = f" ({100 * min(last):.1f} to {100 * max(last):.1f})" if len(last) > 1 else ""
        return f"{100 * np.mean(last):.1f} %{spread}"

    cells: list[tuple[Cell, ...]] = [(TITLES[row], *(shown(row, each) for each in subjects)) for row in ROWS]
    return table((f"after {budgets(scale)[-1]}", *subjects), cells)


def _words(found: Mapping[Key, Asked], regrets: Mapping[Key, np.ndarray], scale: Scale) -> list[str]:
    said = comparisons(regrets, scale)
    for row in ROWS:
        own_runs = [each for key, each in found.items() if key[0] == row]
        measuring = sum(each.measuring_seconds for each in own_runs) / sum(each.seconds for each in own_runs)
        counts = [each.measured for each in own_runs]
        told = f"- {TITLES[row]}: {min(counts)} to {max(counts)} graphs measured"
        if row in LEARNERS:
            told += f", {np.mean([each.real_steps for each in own_runs]):,.0f} real steps in the mean"
        said.append(f"{told}; {measuring:.0%} of its time went into measuring.")
    config = next(run.config for key, run in askings(scale).items() if key[0] == "wm")
    said.append(
        f"- WM and WM+ play {RANDOM_UPDATES * config.groups * config.rollouts} episodes at random, to the "
        "last step that there is, before any network plays, and some before these, which train the encoder "
        "and are not measured. A row that measured less than it was allowed ended its episodes with graphs "
        "that it knew: it stands in all columns with what it had."
    )
    return said


def comparisons(regrets: Mapping[Key, np.ndarray], scale: Scale) -> list[str]:
    """How rows compare over the graphs after the last budget, by paired t tests, corrected by Holm."""
    told: list[str] = []
    differences: list[np.ndarray] = []
    for executor in executors_of(regrets):
        own = of_executor(regrets, executor)
        for one, other in PAIRS:
            differences.append((by_subject(own, one) - by_subject(own, other))[:, -1])
            told.append(f"{executor}, {TITLES[one]} less {TITLES[other]}: {interval(differences[-1])}")
    chances = holm([p_of(each) for each in differences])
    return [
        f"- After {budgets(scale)[-1]}, difference in how much slower (p by a paired t test over the graphs, "
        "corrected by Holm):",
        *(f"  - {text}, p = {p:.2g}." for text, p in zip(told, chances, strict=True)),
    ]


EFFICIENCY = Experiment(
    "Rows at equal numbers of measurements, on graphs of several blocks",
    "Parker 2021, section 5 (sample efficiency), with measured latencies as rewards",
    runs,
    report,
    "What is asked for is measured then. MF, WM and WM+ measure the graph that an episode ends with; on the "
    "way they are told what prices promise.\nTop k by price, best first by measured time and random play are "
    "the trivial rivals; top k by price and the model of prices choose from what a search by price visited.",
)
