"""Table 6.1 of the thesis: how long collection, broadcast and learning take for a number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from training.experiments.cores_run import control, cores
from training.experiments.experiment import Cell, Experiment, Results, table, write_csv
from training.experiments.runs import Finished, Scale, Workplace
from training.experiments.thesis_run import NOTE, ThesisRun, workers_of
from training.learn_to_optimise.episodes import DriverTask
from training.learn_to_optimise.functions import FUNCTIONS
from training.learn_to_optimise.training_run import Outcome, Spec, Workers

STEPS = 500
"""Fewer than theirs: a step takes as long as any other, so that a part of them says as much."""
EPISODES = 64
WORKERS = (1, 2, 4)
#: Of the thesis: seconds of collection, rho and rho* by number of drivers; 24 cores.
THEIRS = {
    1: (30341, 1.0, 1.0),
    2: (15516, 1.96, 1.95),
    4: (8259, 3.67, 3.64),
    8: (4856, 6.25, 6.13),
    16: (3062, 9.91, 9.44),
    32: (2349, 12.92, 11.48),
    64: (1264, 24.01, 11.93),
}
THEIR_STEPS = 10_000
ALONE = 0.95  # share of the time that a process must have had a core, or others were measured too
HEADER = (
    "workers", "collect s", "broadcast s", "learn s", "rho", "rho*", "data and weights as with 1",
    "theirs: collect s", "rho", "rho*",
)  # fmt: skip
PHASES = ("collect", "broadcast", "learn")
Setting = tuple[str, int, int]  # function, workers, seed
Found = Mapping[Setting, Finished[Outcome]]


def settings(scale: Scale, place: Workplace) -> dict[Setting, ThesisRun]:
    """The runs. Each driver plays one episode, as theirs do where they are as many as episodes."""
    found = {}
    for function in FUNCTIONS:
        for seed in range(scale.seeds):
            spec = Spec(DriverTask(function, "random", EPISODES, 1), seed, scale.steps(STEPS))
            for count in WORKERS:
                workers = Workers("in_process") if count == 1 else workers_of(place, count)
                found[function, count, seed] = ThesisRun(spec, workers, is_timed=True)
    return found


def seconds_of(found: Finished[Outcome]) -> tuple[float, float, float]:
    """Of collection, broadcast and learning."""
    outcome = found.outcome
    return outcome.collect_seconds, outcome.broadcast_seconds, outcome.learn_seconds


def report(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    runs = settings(results.scale, results.place)
    found = {setting: results.finished[run] for setting, run in runs.items()}
    rows = [
        (*setting, *seconds_of(each), each.outcome.data, each.outcome.weights, each.cpu_share)
        for setting, each in found.items()
    ]
    header = ("function", "workers", "seed", *(f"{name}_seconds" for name in PHASES))
    write_csv(folder / "table6.1.csv", (*header, "data_sha256", "weights_sha256", "cpu_share"), rows)
    means = {
        count: [
            sum(seconds_of(each)[phase] for (_, own, _), each in found.items() if own == count)
            / (len(FUNCTIONS) * results.scale.seeds)
            for phase in range(len(PHASES))
        ]
        for count in WORKERS
    }
    _plot(means, folder / "table6.1.png")
    lines = [_line(found, count, means) for count in WORKERS]
    steps = results.scale.steps(STEPS)
    one_process = [each for (_, count, _), each in found.items() if count == 1]
    return [
        "![seconds](table6.1.png)",
        "",
        *table(HEADER, lines),
        "",
        f"Means over the three functions and {results.scale.seeds} seeds, {steps} training steps (theirs: "
        f"{THEIR_STEPS}) of {EPISODES} episodes of two steps each. rho is the collection time of one worker "
        "over that of k; rho* counts the broadcast too. One worker is this process.",
        "",
        *_words(lines, means, min(each.cpu_share for each in one_process), steps),
        control([results.finished.outcome(run) for run in cores(results.scale)]),
    ]


def _line(found: Found, count: int, means: Mapping[int, list[float]]) -> list[Cell]:
    """The row of a number of workers."""
    collect, broadcast, learn = means[count]
    alone = means[1][0]
    is_same = all(
        (each.outcome.data, each.outcome.weights) == (one.outcome.data, one.outcome.weights)
        for (function, own, seed), each in found.items()
        if own == count
        for one in [found[function, 1, seed]]
    )
    adjusted = 1.0 if count == 1 else alone / (collect + broadcast)
    ours: list[Cell] = [count, collect, broadcast, learn, alone / collect, adjusted]
    return [*ours, "yes" if is_same else "NO", *THEIRS[count]]


def _words(
    lines: Sequence[Sequence[Cell]], means: Mapping[int, list[float]], cpu_share: float, steps: int
) -> list[str]:
    hashes = all(line[6] == "yes" for line in lines)
    mine = 1000 * means[1][0] / steps / EPISODES
    theirs = 1000 * THEIRS[1][0] / THEIR_STEPS / EPISODES
    said = [
        "- Data and weights are the same bits for every number of workers."
        if hashes
        else "- DATA OR WEIGHTS DEPEND ON THE NUMBER OF WORKERS: this is a defect.",
        f"- The cost of an episode: {theirs:.3g} ms of collection there and {mine:.3g} ms here. The less it "
        "is, the more what it takes to hand out keys and weights counts beside it.",
    ]
    if cpu_share < ALONE:
        said.append(
            f"- The machine had other work: at the worst, the run in one process had a core for "
            f"{cpu_share:.0%} of its time. So these times say nothing of what more workers gain; the hashes "
            "hold all the same."
        )
    return said


def _plot(means: dict[int, list[float]], path: Path) -> None:
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    panel = figure.subplots()
    labels, below = [str(count) for count in means], [0.0] * len(means)
    for phase, name in enumerate(PHASES):
        values = [each[phase] for each in means.values()]
        panel.bar(labels, values, bottom=below, label=name)
        below = [a + b for a, b in zip(below, values, strict=True)]
    panel.set_xlabel("workers")
    panel.set_ylabel("seconds")
    panel.legend()
    figure.savefig(path, dpi=90)


TABLE_6_1 = Experiment(
    "Time of collection, broadcast and learning by number of workers",
    "Mayer 2023, table 6.1 and figures 6.1 and 6.2",
    lambda scale, place: [*settings(scale, place).values(), *cores(scale)],
    report,
    NOTE,
)
