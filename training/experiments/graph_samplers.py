"""Samplers of the free parameters of training graphs, compared by what agents then save on other graphs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from training.config import Config
from training.experiments.experiment import Experiment, Results, table, write_csv
from training.experiments.graph_run import GraphOutcome, GraphRun
from training.experiments.intervals import CONFIDENCE, differing, mean_and_half_width
from training.experiments.runs import Scale, Workplace
from training.samplers import HOMOGENEOUS, SAMPLERS

UPDATES = 400
GROUPS = 6  # so that each of the three samplers of "heterogeneous" has two
TEST_GRAPHS = 24
SMALL_SHARE = 0.05  # below it: few test graphs, short episodes
FEWEST = 5  # updates
Setting = tuple[str, int]  # sampler, seed


def settings(scale: Scale, place: Workplace) -> dict[Setting, GraphRun]:
    """A run for each sampler and seed; all seeds begin with the networks of that seed."""
    del place  # collected by the process of the run: several runs at once are better than several workers
    is_small = scale.share < SMALL_SHARE
    updates = max(FEWEST, round(scale.share * UPDATES))
    return {
        (sampler, seed): GraphRun(
            Config.of_row(
                "mf",
                sampler=sampler,
                seed=seed,
                groups=GROUPS,
                rollouts=4,
                max_steps=4 if is_small else 15,
                learning_rate=1e-3,
                warm_up=updates,
                updates=updates,
            ),
            test_graphs=4 if is_small else TEST_GRAPHS,
        )
        for sampler in SAMPLERS
        for seed in range(scale.seeds)
    }


def report(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    scale = results.scale
    runs = settings(scale, results.place)
    found = {setting: results.finished.outcome(run) for setting, run in runs.items()}
    config, graphs = next((run.config, run.test_graphs) for run in runs.values())
    curves = [
        (*setting, update, saved)
        for setting, each in found.items()
        for update, saved in zip(each.updates, each.gains, strict=True)
    ]
    write_csv(folder / "samplers.csv", ("sampler", "seed", "update", "saved"), curves)
    _plot(found, scale.seeds, folder / "samplers.png")
    before, after = ({each: _column(found, each, scale.seeds, at) for each in SAMPLERS} for at in (0, -1))
    learned = {each: after[each] - before[each] for each in SAMPLERS}
    steps = {
        each: np.mean([found[each, seed].real_steps for seed in range(scale.seeds)]) for each in SAMPLERS
    }
    rows = [
        (
            each,
            *(mean_and_half_width(100 * column[each]) for column in (before, after, learned)),
            int(steps[each]),
        )
        for each in SAMPLERS
    ]
    return [
        "![learning curves](samplers.png)",
        "",
        f"Row `mf`, {config.updates} updates of {config.groups} graphs with {config.rollouts} episodes each. "
        "Samplers draw batch, size or length, and width of the blocks of the curriculum. What counts is how "
        f"much of the first cost the policy's episodes save on {graphs} held-out graphs with random "
        f"parameters: means over {scale.seeds} seeds with intervals of {CONFIDENCE:.0%}, in percent. "
        "Untrained policies of one seed are one policy, whatever the sampler is.",
        "",
        *table(("sampler", "untrained", "trained", "learned", "real steps"), rows),
        "",
        *_words(learned, scale.seeds),
    ]


def _column(found: Mapping[Setting, GraphOutcome], sampler: str, seeds: int, at: int) -> np.ndarray:
    """What is saved at one of the measurements, [seeds]."""
    return np.array([found[sampler, seed].gains[at] for seed in range(seeds)])


def _words(learned: Mapping[str, np.ndarray], seeds: int) -> list[str]:
    order = sorted(SAMPLERS, key=lambda each: -float(learned[each].mean()))
    pairs = differing(learned)
    told = sorted(" and ".join(sorted(pair)) for pair in pairs)
    said = [f"- Order by what was learned, best first: {', '.join(order)}."]
    if seeds < 2:
        return [*said, "- One seed tells nothing of the difference between samplers."]
    said.append(
        "- Seed by seed, the difference is more than chance (t test, corrected by Holm) "
        + (
            f"of {', '.join(told)} only."
            if told
            else "of no pair: the samplers cannot be told from each other."
        )
    )
    mixed = all(frozenset(("heterogeneous", each)) in pairs for each in HOMOGENEOUS)
    is_best = order[0] == "heterogeneous"
    claim = "agrees" if mixed and is_best else "is not confirmed on graphs"
    said.append(f"- That heterogeneous sampling is best, as the thesis has it of Ackley at first, {claim}.")
    return said


def _plot(found: Mapping[Setting, GraphOutcome], seeds: int, path: Path) -> None:
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    panel = figure.subplots()
    for number, sampler in enumerate(SAMPLERS):
        outcomes = [found[sampler, seed] for seed in range(seeds)]
        gains = 100 * np.array([each.gains for each in outcomes])
        panel.plot(outcomes[0].updates, gains.mean(0), color=f"C{number}", label=sampler)
        panel.fill_between(outcomes[0].updates, gains.min(0), gains.max(0), color=f"C{number}", alpha=0.15)
    panel.set_xlabel("updates (bands: least and most of the seeds)")
    panel.set_ylabel("saved on held-out graphs, %")
    panel.legend(fontsize=8)
    figure.savefig(path, dpi=90)


SAMPLERS_ON_GRAPHS = Experiment(
    "Samplers of the free parameters of graphs",
    "Beside tables 6.2 and 6.3 of Mayer 2023: the same on the task of this project",
    lambda scale, place: list(settings(scale, place).values()),
    report,
    "",
)
