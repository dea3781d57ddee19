"""Figure 4.2 of the dissertation: what TASO's search has found after so many steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from training.experiments.dissertation.libraries import OURS, TASO, TITLES, library
from training.experiments.dissertation.search_run import BUDGETS, NOISE, Found, SearchRun
from training.experiments.experiment import Experiment, Results, table, write_csv
from training.experiments.graphs_of_paper import GRAPHS, graphs_at
from training.experiments.intervals import half_width
from training.experiments.runs import Scale, Workplace

STEPS = 50_000
ALPHAS = (1.02, 1.05, 1.1)
#: Seconds of TASO's search on a GPU, from the literature.
THEIR_SECONDS = {
    "squeezenet1_1": 16.4,
    "inception_v3": 68.6,
    "resnext50_32x4d": 25.3,
    "nasnet_a": 1226.0,
    "nasrnn": 177.0,
}
_RELEASED = 133  # rules in TASO's file
THEIR_LAST_STEP = 5_000  # after which nothing was found any more


@dataclasses.dataclass(frozen=True)
class Contender:
    """A searcher with a library."""

    title: str
    searcher: str
    alpha: float = 1.05
    rules: str = OURS


MAIN = Contender(f"TASO's search, alpha 1.05, {TITLES[OURS]}", "taso")
CONTENDERS = (
    *(Contender(f"TASO's search, alpha {alpha:g}, {TITLES[OURS]}", "taso", alpha) for alpha in ALPHAS),
    Contender(f"TASO's search, alpha 1.05, {TITLES[TASO]}", "taso", rules=TASO),
    Contender(f"greedy, {TITLES[OURS]}", "greedy"),
    Contender(f"greedy, {TITLES[TASO]}", "greedy", rules=TASO),
)
_TOLD = 0.001  # share of the time below which a difference is none
Setting = tuple[str, Contender, int]  # graph, who, seed


def settings(scale: Scale, place: Workplace) -> dict[Setting, SearchRun]:
    """The runs."""
    return {
        (name, who, seed): SearchRun(name, who.searcher, scale.steps(STEPS), who.alpha, who.rules, seed=seed)
        for name in graphs_at(scale.share)
        for who in CONTENDERS
        for seed in _seeds(scale)
    }


def _seeds(scale: Scale) -> range:
    """Of the prices: undisturbed ones for a single run; of several each is drawn."""
    return range(1) if scale.seeds == 1 else range(1, scale.seeds + 1)


def report(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    scale = results.scale
    runs = settings(scale, results.place)
    found = {setting: results.finished.outcome(run) for setting, run in runs.items()}
    names = list(dict.fromkeys(name for name, _, _ in found))
    steps = scale.steps(STEPS)
    budgets = [each for each in BUDGETS if each < steps] + [steps]
    rows = [
        (name, who.searcher, who.alpha, who.rules, seed, budget, each.gain_at(budget))
        for (name, who, seed), each in found.items()
        for budget in budgets
    ]
    write_csv(folder / "fig4.2.csv", ("graph", "searcher", "alpha", "rules", "seed", "budget", "gain"), rows)
    _plot(found, names, steps, folder / "fig4.2.png")

    def gains(name: str, who: Contender, budget: int) -> list[float]:
        return [found[name, who, seed].gain_at(budget) for seed in _seeds(scale)]

    shown = [each for each in budgets if each in (200, 1_000, 5_000, steps)]
    by_budget = [
        (GRAPHS[name].title, *(_percent(gains(name, MAIN, budget)) for budget in shown), *_end(found, name))
        for name in names
    ]
    by_contender = [
        (GRAPHS[name].title, *(_percent(gains(name, who, steps)) for who in CONTENDERS)) for name in names
    ]
    return [
        "![search curves](fig4.2.png)",
        "",
        f"Share of the predicted time that is saved, after so many steps of {MAIN.title}. Means over "
        f"{scale.seeds} seeds with intervals of 95 %. The prices are those of eager PyTorch; where there are "
        f"several seeds each operator's is disturbed by {NOISE:.0%} for the search, since TASO measures its "
        "prices anew in each run; what a plan saves is told by the undisturbed ones.",
        "",
        *table(
            (
                "graph",
                *(f"{each} steps" for each in shown),
                "last found at step",
                "seconds",
                "TASO's seconds",
            ),
            by_budget,
        ),
        "",
        f"After {steps} steps, or where the search has ended by itself:",
        "",
        *table(("graph", *(who.title for who in CONTENDERS)), by_contender),
        "",
        *_words(found, names, _seeds(scale), steps),
    ]


def _end(found: Mapping[Setting, Found], name: str) -> tuple[str, float, str]:
    mine = [each for (graph, who, _), each in found.items() if (graph, who) == (name, MAIN)]
    last = [each.found_at for each in mine]
    span = str(last[0]) if min(last) == max(last) else f"{min(last)} to {max(last)}"
    seconds = float(np.median([each.seconds for each in mine]))
    return span, seconds, f"{THEIR_SECONDS[name]:g}" if name in THEIR_SECONDS else ""


def _percent(gains: Sequence[float]) -> str:
    half = half_width(gains)
    return f"{100 * float(np.mean(gains)):.1f} %" + (f" ± {100 * half:.1f}" if half > 0.0005 else "")


def _words(
    found: Mapping[Setting, Found], names: Sequence[str], every: Sequence[int], steps: int
) -> list[str]:

    def saves_more(one: Contender, other: Contender) -> list[str]:
        """Graphs on which one saves more, by more than the interval of 95 % of the difference."""
        more = []
        for name in names:
            differences = [found[name, one, seed].gain - found[name, other, seed].gain for seed in every]
            if np.mean(differences) > max(_TOLD, half_width(differences)):
                more.append(name)
        return more

    late = [
        name for name in names if any(found[name, MAIN, seed].found_at > THEIR_LAST_STEP for seed in every)
    ]
    greedy = next(who for who in CONTENDERS if (who.searcher, who.rules) == ("greedy", OURS))
    of_taso = next(who for who in CONTENDERS if (who.searcher, who.rules) == ("taso", TASO))
    won, lost = saves_more(MAIN, greedy), saves_more(greedy, MAIN)
    poorer, richer = saves_more(MAIN, of_taso), saves_more(of_taso, MAIN)
    wide = max(names, key=lambda name: half_width([found[name, MAIN, seed].gain for seed in every]))
    count = sum(name.startswith("taso_") and not name.endswith("_linear") for name in library(TASO).names)
    said = []
    if steps > THEIR_LAST_STEP:
        said.append(
            f"- The paper: nothing is found after about {THEIR_LAST_STEP} steps of {STEPS}. Here "
            + ("that agrees on all graphs." if not late else f"that does not hold for {_list(late)}.")
        )
    else:
        said.append(
            f"- The paper says that nothing is found after about {THEIR_LAST_STEP} steps; these runs end at "
            f"{steps} and cannot tell."
        )
    if cut := [name for name in names if any(found[name, MAIN, seed].is_cut(steps) for seed in every)]:
        said.append(f"- The clock ended the search on {_list(cut)} before its steps did.")
    if len(names) > 1 and half_width([found[wide, MAIN, seed].gain for seed in every]) > 0:
        agrees = "and so it is here" if wide == "toy_bert" else f"here it is that of {GRAPHS[wide].title}"
        said.append(f"- The paper has the widest interval on its toy BERT, {agrees}.")
    said += [
        f"- Against greedy search with the same library, TASO's search saves more on {_list(won)}, and less "
        f"on {_list(lost)}: its steps are single places, and each is an expansion, while greedy takes a step "
        f"and never comes back. {_why_less(found, lost, every, steps)}",
        f"- With TASO's own rules the same search saves less than with our library on {_list(poorer)}, and "
        f"more on {_list(richer)}. Graphs on which the seeds do not tell are in neither.",
        f"- TASO's rules are {count} of the {_RELEASED} of its file, those that are proved, with what its "
        "program has built in and normal forms of linear layers; see docs/training.md.",
        "- Seconds are not comparable: theirs contain measurements on a GPU, ours are predicted prices.",
    ]
    return said


def _why_less(found: Mapping[Setting, Found], lost: Sequence[str], seeds: Sequence[int], steps: int) -> str:
    """Whether more steps could have helped where greedy saves more."""
    over = [name for name in lost if all(found[name, MAIN, seed].is_exhausted for seed in seeds)]
    slow = [name for name in lost if any(found[name, MAIN, seed].is_cut(steps) for seed in seeds)]
    cut = [name for name in lost if name not in (*over, *slow)]
    said = [
        f"Where it saves less, nothing was left to expand on {_list(over)}." if over else "",
        f"These steps ended the search on {_list(cut)}, so more of them might save more." if cut else "",
    ]
    return " ".join(filter(None, said))


def _list(names: Sequence[str]) -> str:
    return ", ".join(GRAPHS[name].title for name in names) or "none"


def _plot(found: Mapping[Setting, Found], names: Sequence[str], steps: int, path: Path) -> None:
    columns = min(4, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(2.9 * columns, 2.5 * lines + 0.8), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    grid = np.unique(np.geomspace(1, steps, 80).astype(int))
    for panel, name in zip(panels, names, strict=False):
        for color, who in enumerate(CONTENDERS):
            mine = [each for (graph, own, _), each in found.items() if (graph, own) == (name, who)]
            curves = 100 * np.array([[each.gain_at(int(at)) for at in grid] for each in mine])
            mean = curves.mean(axis=0)
            half = np.array([half_width(column) for column in curves.T])
            style = "--" if who.searcher == "greedy" else "-"
            panel.plot(grid, mean, style, color=f"C{color}", linewidth=1, label=who.title)
            panel.fill_between(grid, mean - half, mean + half, color=f"C{color}", alpha=0.15, linewidth=0)
        panel.set_title(GRAPHS[name].title, fontsize=8)
        panel.set_xscale("log")
        panel.set_xlabel("steps (expansions)", fontsize=7)
        panel.tick_params(labelsize=7)
    for panel in panels[len(names) :]:
        panel.set_axis_off()
    figure.supylabel("predicted time saved, %", fontsize=8)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=7)
    figure.savefig(path, dpi=80)


FIGURE_4_2 = Experiment(
    "TASO's search: what is saved after so many steps",
    "Parker 2021, figure 4.2 and section 4.3.1; seconds of TASO by Yang et al. 2021 (Tensat)",
    lambda scale, place: list(settings(scale, place).values()),
    report,
    "Costs are predicted; nothing is run.",
)
