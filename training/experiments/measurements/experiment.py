"""The dissertation's question, asked honestly: how many measurements does each row need?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from baselines.shared.paired import holm
from training.config import Config
from training.dream_trainer import RANDOM_UPDATES
from training.experiments.asking import learners
from training.experiments.asking.learners import FAILED, LEARNERS, LEAST_UPDATES
from training.experiments.asking.orders import BELIEF
from training.experiments.asking.regrets import Key, by_subject, interval, of_executor, plot
from training.experiments.experiment import Cell, Experiment, Results, table, write_csv
from training.experiments.intervals import p_of
from training.experiments.measurements.asking_run import FORETOLD, ROWS, Asked, AskingRun
from training.experiments.measurements.forecast_run import ForecastRun
from training.experiments.measurements.space_run import MeasuredSpace, SpaceRun
from training.experiments.measurements.subjects import QUICK, SUBJECTS
from training.experiments.runs import EXECUTORS, Run, Scale, Workplace

BUDGETS = (1, 3, 10, 30, 100, 300)
_COMPARED_AT = (30, 100)
PAIRS = (("wm", "mf"), ("wm_plus", "mf"), (BELIEF, "price"), (FORETOLD, BELIEF))
CLOSE = 0.02
_SMALL = 0.05  # share below which only that one is made
_BLOCKS, _MEMBERS, _EPOCHS, _BASES = 8, 4, 60, 1_000
#: Updates of a training, in full; an update of "wm" and "wm_plus" takes longer.
_UPDATES = {"mf": 400, "wm": 120, "wm_plus": 120}
_TITLES = {"random": "any order", FORETOLD: "the same, pre-trained", **learners.TITLES}
TITLES = {row: _TITLES[row] for row in ROWS}  # "the same" as the row before


def spaces(scale: Scale) -> dict[tuple[str, str], SpaceRun]:
    """By subject and executor."""
    is_small = scale.share < _SMALL
    blocks = 2 if is_small else _BLOCKS
    subjects = (QUICK,) if is_small else tuple(name for name in SUBJECTS if name != QUICK)
    return {
        (subject, executor): SpaceRun(subject, executor, blocks)
        for subject in subjects
        for executor in EXECUTORS
    }


def askings(scale: Scale, place: Workplace) -> dict[Key, AskingRun]:
    """By row, subject, executor and seed."""
    measured = spaces(scale)
    shares = min(1.0, 5 * scale.share)  # the networks' forecast is one run for all
    forecast = ForecastRun(
        tuple(measured.values()),
        _MEMBERS if scale.share >= _SMALL else 1,
        max(1, round(shares * _EPOCHS)),
        _BASES if scale.share >= _SMALL else 10,
        place.out,
    )
    return {
        (row, *key, seed): AskingRun(
            row,
            space,
            seed,
            max(LEAST_UPDATES, round(scale.share * _UPDATES[row])) if row in LEARNERS else 0,
            place.out,
            forecast if row == FORETOLD else None,
        )
        for row in ROWS
        for key, space in measured.items()
        for seed in range(scale.seeds)
    }


def runs(scale: Scale, place: Workplace) -> list[Run[Any]]:
    """See `Experiment`."""
    return list(askings(scale, place).values())


def report(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    scale = results.scale
    found = {key: results.finished.outcome(run) for key, run in askings(scale, results.place).items()}
    measured = {key: results.finished.outcome(run) for key, run in spaces(scale).items()}
    regrets = {key: asked.regret(measured[key[1:3]], key[3]) for key, asked in found.items()}
    write_csv(
        folder / "measurements.csv",
        ("row", "graph", "executor", "seed", "measurements", "slower_than_fastest", "real_steps"),
        [
            (*key, n, float(regrets[key][n - 1]), found[key].real_steps)
            for key in found
            for n in BUDGETS
            if n <= len(regrets[key])
        ],
    )
    drawn = np.unique(np.geomspace(1, max(map(len, regrets.values())), 60).round().astype(int))
    plot(_after(regrets, drawn), TITLES, drawn, "fastest", folder / "measurements.png")
    lines = ["![regret](measurements.png)", "", *_spaces(measured), ""]
    for executor in EXECUTORS:
        own = of_executor(regrets, executor)
        lines += [f"### {executor}", "", *_table(own), ""]
    return [*lines, *_words(found, regrets, measured)]


def _after(regrets: Mapping[Key, np.ndarray], at: Sequence[int] | np.ndarray) -> dict[Key, np.ndarray]:
    """[len(at)] each, after so many measurements, or after all of the space."""
    return {key: each[np.minimum(at, len(each)) - 1] for key, each in regrets.items()}


def _spaces(measured: Mapping[tuple[str, str], MeasuredSpace]) -> list[str]:
    """What was measured."""
    cells: list[tuple[Cell, ...]] = []
    for (subject, executor), space in measured.items():
        true, told = space.true, space.told(0)
        floor = float(true[int(np.argmin(told))] / true[space.fastest] - 1)
        cells.append(
            (
                subject,
                executor,
                len(true),
                len(space.names),
                space.first_us / 1e3,
                f"{true[space.fastest]:.3f}",
                f"{true.max():.2f}",
                f"{space.noise:.1%}",
                f"{floor:.1%}",
            )
        )
    header = (
        "graph", "executor", "graphs", "substitutions", "ms of the first", "fastest", "slowest", "noise",
        "all measured",
    )  # fmt: skip
    failed = sum(len(space.reasons) for space in measured.values())
    return [
        "Fastest and slowest as shares of the first graph's time; noise is the median difference of two "
        "measurements of a graph. Where all graphs are measured once and the fastest is taken, it is slower "
        "than the fastest by what stands in the last column: nobody can do better but by luck. The fastest "
        "is the one by the calls that rows are told of, and how much slower a choice is, is told by other "
        "calls: where a number is negative, these had another order.",
        "",
        *table(header, cells),
        *[f"\nNot run by the executor, and told as {FAILED:g} times the first graph's time: {failed} graphs."]
        * bool(failed),
    ]


def _table(regrets: Mapping[Key, np.ndarray]) -> list[str]:
    """Mean regret by row and budget, with intervals over the graphs."""
    cells: list[tuple[Cell, ...]] = []
    means = _after(regrets, BUDGETS)
    for row in ROWS:
        shown = [interval(each) for each in by_subject(means, row).T]
        needed = _needed(regrets, row)
        reached = needed[np.isfinite(needed)]
        cells.append(
            (
                TITLES[row],
                *shown,
                f"{np.median(needed):.0f}" if np.isfinite(np.median(needed)) else "not",
                f"{len(reached)} of {len(needed)}",
            )
        )
    header = ("row", *(f"after {n}" for n in BUDGETS), f"stays within {CLOSE:.0%} from", "at the end")
    return table(header, cells)


def _needed(regrets: Mapping[Key, np.ndarray], row: str) -> np.ndarray:
    """[subjects * seeds], measurements from which on a row stands within `CLOSE`; infinite where it does not.

    A row cannot know that it has come so far: where it leaves again for what it was told is faster, it had
    not.
    """
    found = []
    for key, regret in regrets.items():
        if key[0] == row:
            far = np.nonzero(regret > CLOSE)[0]
            last = int(far[-1]) + 1 if len(far) else 0
            found.append(float(last + 1) if last < len(regret) else np.inf)
    return np.array(found)


def _words(
    found: Mapping[Key, Asked],
    regrets: Mapping[Key, np.ndarray],
    measured: Mapping[tuple[str, str], MeasuredSpace],
) -> list[str]:
    said = [
        "- The dissertation holds that a world model saves steps in the real environment. Here a step is "
        "dear because its reward is a measured latency, and what was measured once is not measured again, "
        "for any row."
    ]
    at = _after(regrets, _COMPARED_AT)
    chances = _chances(at)
    for executor in EXECUTORS:
        own = of_executor(at, executor)
        means = {row: float(by_subject(own, row)[:, 0].mean()) for row in ROWS}
        order = sorted(ROWS, key=lambda row: means[row])
        listed = ", ".join(f"{TITLES[row]} {means[row]:.1%}" for row in order)
        said.append(f"- {executor}, after {_COMPARED_AT[0]} measurements, slower than the fastest: {listed}.")
        said += [f"  {_against(own, *pair, chances[executor, *pair])}" for pair in PAIRS]
    steps = {
        row: np.mean([each.real_steps for key, each in found.items() if key[0] == row]) for row in LEARNERS
    }
    graphs = {
        row: np.mean([len(each.order) for key, each in found.items() if key[0] == row]) for row in LEARNERS
    }
    of_all = float(np.mean([len(space.keys) for space in measured.values()]))
    config = Config.of_row("wm", graph=QUICK)
    said.append(
        f"- WM and WM+ play {RANDOM_UPDATES * config.groups * config.rollouts} episodes at random, before "
        "any network plays. Up to the measurements that these take they are one row, and it is random play "
        "that MF is compared with there, not a world model."
    )
    said.append(
        "- Trained rows made "
        + ", ".join(f"{TITLES[row]} {steps[row]:,.0f} steps to {graphs[row]:.0f} graphs" for row in LEARNERS)
        + f", of {of_all:.0f} in a space; means. What an agent does not visit it does not measure."
    )
    return said


def _chances(regrets: Mapping[Key, np.ndarray]) -> dict[tuple[str, str, str], list[float]]:
    """By executor and pair, p at each of `_COMPARED_AT`, corrected by Holm for all of them together."""
    keys = [(executor, *pair) for executor in EXECUTORS for pair in PAIRS]
    found = []
    for executor, one, other in keys:
        own = of_executor(regrets, executor)
        found += [p_of(difference) for difference in (by_subject(own, one) - by_subject(own, other)).T]
    corrected = iter(holm(found))
    return {key: [next(corrected) for _ in _COMPARED_AT] for key in keys}


def _against(regrets: Mapping[Key, np.ndarray], one: str, other: str, chances: Sequence[float]) -> str:
    """How two rows compare over the graphs, at `_COMPARED_AT` measurements."""
    told = []
    differences = (by_subject(regrets, one) - by_subject(regrets, other)).T
    for n, difference, p in zip(_COMPARED_AT, differences, chances, strict=True):
        wins = int((difference < 0).sum())
        told.append(
            f"{interval(difference)} after {n} (less on {wins} of {len(difference)} graphs, p = {p:.2g})"
        )
    return f"{TITLES[one]} less {TITLES[other]}: {', '.join(told)}."


MEASUREMENTS = Experiment(
    "Measurements that each row needs",
    "Parker 2021, section 5 (sample efficiency), with measured latencies as rewards",
    runs,
    report,
    "Each graph of a space was measured once, and all rows are told the same times. Times of what a row "
    "chose come from other calls.\nTop k by price, best first by measured time and any order are the trivial "
    "rivals.",
)
