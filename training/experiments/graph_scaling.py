"""How long collection, broadcast and learning take on graphs, by kind and number of workers."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from training.collectors import collector
from training.config import Config
from training.experiments.cores_run import control, cores
from training.experiments.experiment import Experiment, Results, table, write_csv
from training.experiments.graph_run import GraphOutcome, GraphRun
from training.experiments.runs import Finished, Scale, Workplace

ALONE = "in_process"
KINDS = tuple(kind for kind in collector.KINDS if kind not in (collector.AUTO, ALONE))
WORKERS = (1, 2)
PHASES = ("collect", "broadcast", "learn")
UPDATES = 10  # that are timed, in all; one more, in which workers begin, is not
SMALL_SHARE = 0.05  # below it: one row, few graphs
Setting = tuple[str, str, int, int]  # row, kind, workers, repetition


def settings(scale: Scale, place: Workplace) -> dict[Setting, GraphRun]:
    """The runs: each setting once, then each once more, and so on, so that a busy minute hits all alike."""
    is_small = scale.share < SMALL_SHARE
    rows = ("mf",) if is_small else ("mf", "plan")
    kinds = [(kind, count) for kind in KINDS if _is_there(kind) for count in WORKERS]
    found = {}
    for repetition in range(scale.seeds):
        for row in rows:
            for kind, count in [(ALONE, 1), *kinds]:
                config = Config.of_row(
                    row,
                    groups=4 if is_small else 24,
                    rollouts=4,
                    max_steps=5 if is_small else 15,
                    warm_up=1,
                    epochs=1,
                    updates=1 + max(1, round(scale.share * UPDATES)),
                    collector=kind,
                    workers=count,
                    ray=place.ray if kind == "ray" else "",
                )
                found[row, kind, count, repetition] = GraphRun(config, 0, repetition, is_timed=True)
    return found


def _is_there(kind: str) -> bool:
    return kind != "ray" or importlib.util.find_spec("ray") is not None


def report(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    runs = settings(results.scale, results.place)
    found = {setting: results.finished[run] for setting, run in runs.items()}
    _write(found, folder / "scaling.csv")
    rows = list(dict.fromkeys(row for row, *_ in found))
    teams = list(dict.fromkeys((kind, count) for _, kind, count, _ in found))
    best = {(row, *team): _best(found, row, *team) for row in rows for team in teams}
    same = {
        (row, *team): len(
            {_hashes(each.outcome) for each in _of(found, row, *team) + _of(found, row, ALONE, 1)}
        )
        == 1
        for row in rows
        for team in teams
    }
    lines = []
    for (row, kind, count), seconds in best.items():
        own = best[row, kind, 1]["collect"] / seconds["collect"]
        alone = best[row, ALONE, 1]["collect"] / seconds["collect"]
        is_same = "yes" if same[row, kind, count] else "NO"
        lines.append((row, kind, count, *(seconds[phase] for phase in PHASES), own, alone, is_same))
    _plot(best, folder / "scaling.png")
    config = next(iter(runs.values())).config
    header = ("row", "workers are", "workers", *(f"{phase} s" for phase in PHASES), "against one of its kind")
    return [
        "![seconds](scaling.png)",
        "",
        *table((*header, "against this process", "data and weights as in this process"), lines),
        "",
        f"{config.updates - 1} updates of {config.groups} graphs with {config.rollouts} episodes each, of at "
        f"most {config.max_steps} steps. Settings took turns, {results.scale.seeds} times; of each update "
        "the shortest time counts, and before these there was one update in which the workers began.",
        "",
        *_words(found, best, all(same.values())),
        control([results.finished.outcome(run) for run in cores(results.scale)]),
    ]


def _of(
    found: Mapping[Setting, Finished[GraphOutcome]], row: str, kind: str, count: int
) -> list[Finished[GraphOutcome]]:
    return [each for setting, each in found.items() if setting[:3] == (row, kind, count)]


def _hashes(outcome: GraphOutcome) -> tuple[str, str]:
    return outcome.data, outcome.weights


def _seconds(outcome: GraphOutcome, phase: str) -> list[float]:
    seconds: list[float] = getattr(outcome, f"{phase}_seconds")
    return seconds


def _best(
    found: Mapping[Setting, Finished[GraphOutcome]], row: str, kind: str, count: int
) -> dict[str, float]:
    """By phase: seconds of all updates, of each the shortest time of all repetitions."""
    outcomes = [each.outcome for each in _of(found, row, kind, count)]
    return {
        phase: sum(min(times) for times in zip(*(_seconds(each, phase) for each in outcomes), strict=True))
        for phase in PHASES
    }


def _gains(found: Mapping[Setting, Finished[GraphOutcome]], row: str, kind: str) -> list[float]:
    """How many times as fast as the faster single worker two are at collecting, in each repetition."""
    alone, one, two = (
        [sum(each.outcome.collect_seconds) for each in _of(found, row, *team)]
        for team in ((ALONE, 1), (kind, 1), (kind, 2))
    )
    return [min(single) / both for *single, both in zip(alone, one, two, strict=True)]


def _write(found: Mapping[Setting, Finished[GraphOutcome]], path: Path) -> None:
    rows = [
        (
            *setting,
            update + 1,
            *(_seconds(each.outcome, phase)[update] for phase in PHASES),
            *_hashes(each.outcome),
        )
        for setting, each in found.items()
        for update in range(len(each.outcome.collect_seconds))
    ]
    header = ("row", "kind", "workers", "repetition", "update", *(f"{phase}_seconds" for phase in PHASES))
    write_csv(path, (*header, "data_sha256", "weights_sha256"), rows)


def _words(
    found: Mapping[Setting, Finished[GraphOutcome]],
    best: Mapping[tuple[str, str, int], dict[str, float]],
    is_same: bool,
) -> list[str]:
    said = [
        "- Data and weights are the same bits for every kind and number of workers."
        if is_same
        else "- DATA OR WEIGHTS DEPEND ON THE WORKERS: this is a defect."
    ]
    for row, kind in dict.fromkeys((row, kind) for row, kind, _ in best if kind != ALONE):
        gains = _gains(found, row, kind)
        said.append(
            f"- `{row}`, {kind}: two workers collect {np.median(gains):.2f} times as fast as one, in this "
            "process or in one of the kind, whichever is faster; turn by turn "
            f"{min(gains):.2f} to {max(gains):.2f}."
        )
    share = min(each.cpu_share for setting, each in found.items() if setting[1] == ALONE)
    said.append(
        f"- The run in one process had a core for {share:.0%} of its time at the worst; where that is far "
        "from 100 %, the machine had other work and the times say little."
    )
    if not _is_there("ray"):
        said.append("- Ray is not installed (`pip install '.[ray]'`) and so not in the table.")
    return said


def _plot(best: Mapping[tuple[str, str, int], dict[str, float]], path: Path) -> None:
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    panel = figure.subplots()
    labels = [f"{row}\n{kind}\n{count}" for row, kind, count in best]
    below = [0.0] * len(best)
    for phase in PHASES:
        values = [each[phase] for each in best.values()]
        panel.bar(labels, values, bottom=below, label=phase)
        below = [a + b for a, b in zip(below, values, strict=True)]
    panel.tick_params(axis="x", labelsize=7)
    panel.set_ylabel("seconds")
    panel.legend()
    figure.savefig(path, dpi=90)


SCALING = Experiment(
    "Time of collection, broadcast and learning on graphs, by kind and number of workers",
    "Beside table 6.1 of Mayer 2023: the same on the task of this project",
    lambda scale, place: [*settings(scale, place).values(), *cores(scale)],
    report,
    "",
)
