"""Tables 6.2 and 6.3 of the thesis: samplers of start states, alone and one for each driver."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from training.experiments.experiment import Experiment, Results, table, write_csv
from training.experiments.intervals import CONFIDENCE, differing, mean_and_half_width
from training.experiments.runs import Scale, Workplace
from training.experiments.thesis_run import NOTE, ThesisRun
from training.learn_to_optimise.episodes import DriverTask
from training.learn_to_optimise.functions import FUNCTIONS, minimum
from training.learn_to_optimise.training_run import PARAMETERS, Outcome, Spec

DRIVERS = 3
EPISODES = 10
WINDOW = 1_000  # training steps at either end
Theirs = Mapping[str, tuple[float, float, float, float, float]]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One of the two tables.

    Attributes:
        name: of its files.
        function: that is minimised.
        steps: of training.
        theirs: by sampler: mean and variance of the first and of the last `WINDOW` steps, and the best.
    """

    name: str
    function: str
    steps: int
    theirs: Theirs

    def settings(self, scale: Scale, place: Workplace) -> dict[tuple[str, int], ThesisRun]:
        """A run for each sampler and seed."""
        return {
            (sampler, seed): ThesisRun(
                Spec(DriverTask(self.function, sampler, DRIVERS, EPISODES), seed, scale.steps(self.steps))
            )
            for sampler in self.theirs
            for seed in range(scale.seeds)
        }

    def report(self, results: Results, folder: Path) -> list[str]:
        """See `Experiment`."""
        scale = results.scale
        runs = self.settings(scale, results.place)
        found = {setting: results.finished.outcome(run) for setting, run in runs.items()}
        steps = scale.steps(self.steps)
        window = max(10, round(WINDOW * steps / self.steps))
        curves = [
            (*setting, update, error)
            for setting, each in found.items()
            for update, error in zip(each.updates, each.errors, strict=True)
        ]
        write_csv(folder / f"{self.name}.csv", ("sampler", "seed", "update", "error"), curves)
        self._plot(found, scale.seeds, folder / f"{self.name}.png")
        error = "MSLE" if FUNCTIONS[self.function].is_logarithmic else "MSE"
        theirs = [(sampler, *self.theirs[sampler]) for sampler in self.theirs]
        best_runs = [
            (sampler, *_numbers(_best(found, sampler, scale.seeds), window)) for sampler in self.theirs
        ]
        ends = {sampler: _ends(found, sampler, scale.seeds, window) for sampler in self.theirs}
        header = ("sampler", "first: mean", "variance", "last: mean", "variance", "best")
        return [
            f"![learning curves]({self.name}.png)",
            "",
            f"{error} to the least values, {steps} training steps (theirs: {self.steps}); of the first and "
            f"last {window} of them (theirs: {WINDOW}). Theirs, the best of three runs:",
            "",
            *table(header, theirs),
            "",
            f"Ours, the best of {scale.seeds} runs, chosen as theirs:",
            "",
            *table(header, best_runs),
            "",
            f"Ours, means over all {scale.seeds} seeds with intervals of {CONFIDENCE:.0%}:",
            "",
            *table(
                ("sampler", "first", "last"),
                (
                    (sampler, *(mean_and_half_width(values) for values in pair))
                    for sampler, pair in ends.items()
                ),
            ),
            "",
            *self._words(ends, scale.share),
        ]

    def _words(self, ends: Mapping[str, tuple[np.ndarray, np.ndarray]], share: float) -> list[str]:
        said = []
        for end, name, column in ((0, "first", 0), (1, "last", 2)):
            theirs = sorted(self.theirs, key=lambda each: self.theirs[each][column])
            ours = sorted(self.theirs, key=lambda each: float(ends[each][end].mean()))
            said.append(
                f"- Order in the {name} steps, best first. Theirs: {_list(theirs)}. Ours: {_list(ours)}."
            )
            told = [" and ".join(sorted(pair)) for pair in differing(_columns(ends, end))]
            rest = f"only of {_list(sorted(told))}" if told else "of no pair"
            said.append(
                f"  Seed by seed, the difference is more than chance (t test, corrected by Holm) {rest}; "
                f"{_claim(ends, end, self.theirs, column)}"
            )
            their_means = [self.theirs[each][column] for each in self.theirs]
            our_means = [float(ends[each][end].mean()) for each in self.theirs]
            said.append(
                f"  The errors are {min(their_means):.3g} to {max(their_means):.3g} there and "
                f"{min(our_means):.3g} to {max(our_means):.3g} here."
            )
        if share < 1:
            said.append(
                f"- Our runs are {share:.3g} as long as theirs, so our last steps are not those of runs that "
                "have converged."
            )
        zero = self._error_of_constant()
        said.append(
            f"- Control: the constant answer 0 has the error {zero:.3g}. "
            + (
                "The function is least at 0 whatever the free parameter is, so the task can be solved "
                "without looking at it, and what is ranked here is how noisy learning is."
                if zero < 1e-3
                else "Here the answer depends on the free parameter."
            )
        )
        said.append(
            "- The thesis shows the best of three runs of each sampler, which is an estimate of luck as much "
            "as of the sampler."
        )
        return said

    def _error_of_constant(self) -> float:
        points = np.array([[0.0, parameter] for parameter in PARAMETERS])
        best = np.array([minimum(self.function, parameter) for parameter in PARAMETERS])
        function = FUNCTIONS[self.function]
        return function.error(function(points), best)

    def _plot(self, found: Mapping[tuple[str, int], Outcome], seeds: int, path: Path) -> None:
        figure = Figure(figsize=(9, 6), layout="constrained")
        panels = figure.subplots(2, 2, sharex=True, sharey=True).flatten()
        for panel, sampler in zip(panels, self.theirs, strict=True):
            for seed in range(seeds):
                outcome = found[sampler, seed]
                panel.plot(outcome.updates, outcome.errors, linewidth=0.8, color=f"C{seed}")
            panel.set_title(sampler, fontsize=9)
            panel.set_yscale("log")
        figure.supxlabel("training steps")
        figure.supylabel("MSLE" if FUNCTIONS[self.function].is_logarithmic else "MSE")
        figure.savefig(path, dpi=90)

    def experiment(self) -> Experiment:
        """The entry of the table."""
        return Experiment(
            f"Samplers of start states on {self.function.capitalize()}",
            f"Mayer 2023, {self.name[:5]} {self.name[5:]} and the figure beside it",
            lambda scale, place: list(self.settings(scale, place).values()),
            self.report,
            NOTE,
        )


def _parts(outcome: Outcome, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Errors in the first and in the last steps; that before all training does not count."""
    updates, errors = np.array(outcome.updates), np.array(outcome.errors)
    return errors[(updates > 0) & (updates <= window)], errors[updates > updates[-1] - window]


def _numbers(outcome: Outcome, window: int) -> tuple[float, ...]:
    """The columns of the thesis."""
    first, last = _parts(outcome, window)
    return (*(float(of(part)) for part in (first, last) for of in (np.mean, np.var)), min(outcome.errors[1:]))


def _best(found: Mapping[tuple[str, int], Outcome], sampler: str, seeds: int) -> Outcome:
    """The run with the best policy at any time."""
    return min((found[sampler, seed] for seed in range(seeds)), key=lambda each: min(each.errors[1:]))


def _ends(
    found: Mapping[tuple[str, int], Outcome], sampler: str, seeds: int, window: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean errors of the first and of the last steps, [seeds] each."""
    means = [[part.mean() for part in _parts(found[sampler, seed], window)] for seed in range(seeds)]
    first, last = np.array(means).T
    return first, last


def _columns(ends: Mapping[str, tuple[np.ndarray, np.ndarray]], end: int) -> dict[str, np.ndarray]:
    return {name: both[end] for name, both in ends.items()}


def _claim(ends: Mapping[str, tuple[np.ndarray, np.ndarray]], end: int, theirs: Theirs, column: int) -> str:
    """What the thesis concludes of heterogeneous sampling, beside what is found here."""
    mixed = "heterogeneous"
    others = [each for each in theirs if each != mixed]
    was_best = all(theirs[mixed][column] <= theirs[each][column] for each in others)
    worse = {each for each in others if ends[mixed][end].mean() < ends[each][end].mean()}
    pairs = differing(_columns(ends, end))
    sure = {each for each in others if frozenset((mixed, each)) in pairs}
    says = "is best there" if was_best else "is not best there"
    is_best = len(worse) == len(others)
    # To be the best takes a difference from each of the others, not to be it a single better one.
    is_sure = sure == worse if is_best else bool(sure - worse)
    if is_sure:
        verdict = "agrees" if is_best == was_best else "does not agree"
    elif is_best == was_best:
        verdict = "has the same sign here but cannot be told from chance"
    else:
        verdict = "is not confirmed"
    return f"that heterogeneous sampling {says}, as the thesis has it, {verdict}."


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)


TABLE_6_2 = Comparison(
    "table6.2",
    "ackley",
    5_000,
    {
        "random": (1.6, 3.6, 0.6, 0.2, 0.018),
        "latin_hypercube": (1.9, 4.47, 0.4, 0.03, 0.00081),
        "uncertainty": (2.3, 2.92, 0.4, 0.09, 0.04),
        "heterogeneous": (1.3, 1.59, 0.6, 0.07, 0.15),
    },
).experiment()
TABLE_6_3 = Comparison(
    "table6.3",
    "rosenbrock",
    10_000,
    {
        "random": (17.1, 71.8, 15.3, 19.5, 3.0),
        "latin_hypercube": (19.4, 45.1, 16.1, 11.7, 2.8),
        "uncertainty": (16.0, 48.9, 14.5, 36.2, 1.1),
        "heterogeneous": (15.1, 62.2, 9.7, 14.0, 1.4),
    },
).experiment()
