"""What was compared, and the tables of it: costs at equal wall time and at equal expansions."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table
from scipy import stats

from baselines.shared import csv_files, curves, terminal
from baselines.shared.curves import Point
from baselines.shared.paired import Paired, compared, holm

#: The search that the agent is asked to reach with a hundredth of its expansions.
TASO, TASO_STEPS = "taso_1.05", 50_000
_NO_LIMIT_S = 600.0


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to compare.

    Attributes:
        executor: whose prices are used.
        primitives_only: leave the composites of the library out.
        seconds: wall times.
        steps: limits of expansions.
        best_known_seconds: of each of the searches that all are measured against, for each model; TASO's long
            run ends after as many, too.
        seeds: runs of what depends on one.
    """

    executor: str = "eager"
    primitives_only: bool = False
    seconds: tuple[float, ...] = (0.1, 0.3, 1.0, 10.0)
    steps: tuple[int, ...] = (100, 500)
    best_known_seconds: float = 60.0
    seeds: int = 5


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a graph is made of.

    Attributes:
        structure: equal for graphs that differ in sizes only.
        families: of its blocks.
    """

    structure: str
    families: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Result:
    """The best cost of one searcher within one limit.

    Attributes:
        limit: such as "0.3 s" or "100 steps".
        point: model, searcher, seed, expansions and seconds that it really took, and cost.
    """

    limit: str
    point: Point


def budgets(settings: Settings) -> dict[str, tuple[float, int]]:
    """Seconds and expansions (0: no limit) of all limits by name, in the order of the tables."""
    timed = {f"{seconds:g} s": (seconds, 0) for seconds in settings.seconds}
    return timed | {f"{steps} steps": (_NO_LIMIT_S, steps) for steps in settings.steps}


def limits(settings: Settings) -> list[str]:
    """Names of all limits in the order of the tables."""
    return list(budgets(settings))


@dataclasses.dataclass(frozen=True)
class Gap:
    """How far a searcher stays above the best known plans.

    Attributes:
        mean: geometric mean over the models of cost / best known cost, less 1; mean over the seeds.
        interval: half the width of the 95 % confidence interval over the seeds; 0 with one seed.
        by_model: cost / best known cost, less 1, of each model; mean over the seeds.
        steps: expansions that were really made, mean over models and seeds.
        seconds: that they took, the same.
    """

    mean: float
    interval: float
    by_model: dict[str, float]
    steps: float = 0.0
    seconds: float = 0.0


CSV_COLUMNS = ("limit", *curves.CSV_COLUMNS)


def write_csv(results: Sequence[Result], path: Path) -> None:
    """All results, with `CSV_COLUMNS`; the limit of what is only measured against is empty."""
    rows = [(result.limit, *dataclasses.astuple(result.point)) for result in results]
    csv_files.write(path, CSV_COLUMNS, rows)


def read_csv(path: Path) -> list[Result]:
    """The inverse of `write_csv`."""
    return [
        Result(
            row["limit"],
            Point(
                row["model"],
                row["searcher"],
                int(row["seed"]),
                int(row["steps"]),
                float(row["seconds"]),
                float(row["cost_ms"]),
            ),
        )
        for row in csv_files.read(path, CSV_COLUMNS)
    ]


def gaps(results: Sequence[Result]) -> dict[tuple[str, str], Gap]:
    """By limit and searcher."""
    best: dict[str, float] = {}
    for result in results:
        point = result.point
        best[point.model] = min(best.get(point.model, math.inf), point.cost_ms)
    ratios: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    made: dict[tuple[str, str], list[Point]] = {}
    for result in results:
        point = result.point
        if result.limit:
            made.setdefault((result.limit, point.searcher), []).append(point)
            by_seed = ratios.setdefault((result.limit, point.searcher), {})
            by_seed.setdefault(point.seed, {})[point.model] = point.cost_ms / best[point.model]
    found = {}
    for key, by_seed in ratios.items():
        means = [statistics.geometric_mean(each.values()) - 1 for each in by_seed.values()]
        interval = 0.0
        if len(means) > 1:
            error = statistics.stdev(means) / math.sqrt(len(means))
            interval = float(stats.t.ppf(0.975, len(means) - 1)) * error
        models = {
            model: statistics.fmean(each[model] for each in by_seed.values()) - 1
            for model in next(iter(by_seed.values()))
        }
        steps = statistics.fmean(point.steps for point in made[key])
        seconds = statistics.fmean(point.seconds for point in made[key])
        found[key] = Gap(statistics.fmean(means), interval, models, steps, seconds)
    return found


def _percent(gap: Gap) -> str:
    spread = f" ± {100 * gap.interval:.2f}" if gap.interval else ""
    return f"{100 * gap.mean:.2f}{spread}"


def render(
    results: Sequence[Result], settings: Settings, kinds: Mapping[str, Kind] | None = None
) -> list[Table]:
    """All tables: mean gaps at every limit, then what is of the wall time nearest to 0.3 s.

    Those are: what the agent wins against each rival, and the gaps of each family and of each model.
    """
    found = gaps(results)
    searchers = list(dict.fromkeys(searcher for _, searcher in found))
    title = "Cost above the best known plans, geometric mean, in %; (expansions)"
    mean = terminal.table(title, ["searcher"], limits(settings))
    for searcher in searchers:
        cells = [found[limit, searcher] for limit in limits(settings)]
        mean.add_row(searcher, *(f"{_percent(gap)} ({gap.steps:.0f})" for gap in cells))
    limit = main_limit(settings)
    columns = [found[limit, searcher].by_model for searcher in searchers]
    tables = [mean, rivals(found, limit, kinds)]
    if kinds:
        title = f"Cost above the best known plans at {limit} by family, geometric mean, in %"
        by_family = terminal.table(title, ["family", "graphs"], searchers)
        for family, models in families_of(kinds).items():
            means = [mean_of(column, models) for column in columns]
            by_family.add_row(family, str(len(models)), *(f"{100 * each:.2f}" for each in means))
        tables.append(by_family)
    each = terminal.table(f"Cost above the best known plan at {limit}, in %", ["model"], searchers)
    for model in columns[0]:
        each.add_row(model, *(f"{100 * column[model]:.2f}" for column in columns))
    return [*tables, each]


def families_of(kinds: Mapping[str, Kind]) -> dict[str, list[str]]:
    """The graphs that have a block of each family."""
    names = sorted({name for kind in kinds.values() for name in kind.families})
    return {name: [model for model, kind in kinds.items() if name in kind.families] for name in names}


def mean_of(gaps_by_model: Mapping[str, float], models: Sequence[str]) -> float:
    """Geometric mean of the gaps of some models."""
    return statistics.geometric_mean(1 + gaps_by_model[model] for model in models) - 1


def main_limit(settings: Settings) -> str:
    """Name of the wall time nearest to 0.3 s."""
    return f"{min(settings.seconds, key=lambda each: abs(each - 0.3)):g} s"


def against(
    found: Mapping[tuple[str, str], Gap], limit: str, kinds: Mapping[str, Kind] | None = None
) -> dict[str, Paired]:
    """The agent against every other searcher by name, with intervals over structures, p-values by Holm."""
    agent = found[limit, "agent"]
    names = [name for each, name in found if each == limit and name != "agent"]
    structures = {model: kinds[model].structure if kinds else model for model in agent.by_model}
    mine = {model: 1 + gap for model, gap in agent.by_model.items()}
    pairs = [
        compared(mine, {m: 1 + gap for m, gap in found[limit, name].by_model.items()}, structures)
        for name in names
    ]
    corrected = holm([pair.p for pair in pairs])
    return {
        name: dataclasses.replace(pair, p=p) for name, pair, p in zip(names, pairs, corrected, strict=True)
    }


def rivals(
    found: Mapping[tuple[str, str], Gap], limit: str, kinds: Mapping[str, Kind] | None = None
) -> Table:
    """What `against` finds, and how many expansions each rival really made."""
    agent, pairs = found[limit, "agent"], against(found, limit, kinds)
    count = next(iter(pairs.values())).structures
    title = f"The agent against each rival at {limit}: ratio of costs over {count} structures"
    table = terminal.table(
        title, ["rival"], ["ratio", "95 % interval", "better", "worse", "p (Holm)", "expansions", "seconds"]
    )
    for name, pair in pairs.items():
        own = found[limit, name]
        interval = f"{pair.low:.4f} to {pair.high:.4f}"
        cells = (f"{pair.ratio:.4f}", interval, str(pair.better), str(pair.worse), f"{pair.p:.3g}")
        table.add_row(name, *cells, f"{own.steps:.0f}", f"{own.seconds:.3f}")
    table.add_row("agent", "1", "", "", "", "", f"{agent.steps:.0f}", f"{agent.seconds:.3f}")
    return table


def verdicts(results: Sequence[Result], settings: Settings) -> Iterable[str]:
    """Where greedy is cheaper than the agent, and how it stands to TASO's long run."""
    found = gaps(results)
    for limit in limits(settings):
        for rival in ("greedy", "chains"):
            agent, other = found[limit, "agent"].by_model, found[limit, rival].by_model
            dearer = sum(agent[model] > other[model] + 1e-6 for model in agent)
            if dearer:
                yield f"{limit}: {rival} is cheaper than the agent on {dearer} models"
    limit = f"{TASO_STEPS // 100} steps"
    if (limit, "agent") not in found:
        return
    own, taso = found[limit, "agent"].by_model, found[f"{TASO_STEPS} steps", TASO]
    close = sum(1 + own[model] <= 1.01 * (1 + taso.by_model[model]) for model in own)
    yield (
        f"{limit}: the agent's plan costs at most 1 % more than that of {TASO} after at most {TASO_STEPS} "
        f"steps (on average {taso.steps:.0f}) on {close} of {len(own)} models"
    )


def write_plot(results: Sequence[Result], settings: Settings, path: Path) -> None:
    """Mean gap over wall time and over expansions, a line for each searcher."""
    found = gaps(results)
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    axes = (("seconds", settings.seconds, "{:g} s"), ("expansions", settings.steps, "{} steps"))
    for panel, (label, values, name) in zip(panels, axes, strict=True):
        for searcher in dict.fromkeys(searcher for _, searcher in found):
            line = [found[name.format(value), searcher] for value in values]
            panel.errorbar(
                values,
                [100 * gap.mean for gap in line],
                [100 * gap.interval for gap in line],
                marker="o",
                markersize=3,
                label=searcher,
                linewidth=2 if searcher == "agent" else 1,
            )
        panel.set_xscale("log")
        panel.set_xlabel(label)
    panels[0].set_ylabel("cost above best known, %")
    panels[0].legend(fontsize=7)
    figure.savefig(path, dpi=150)
