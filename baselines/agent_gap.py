"""What the agents win: best cost of every searcher at equal wall time and at equal expansions.

Costs are those of the cost model; nothing is run. No model of the suite was in any agent's training.
`python -m baselines.agent_gap --help`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from matplotlib.figure import Figure
from rich.progress import track
from rich.table import Table
from scipy import stats

from baselines.graphs import graph_of
from baselines.models import NAMES
from baselines.shared import curves, terminal
from baselines.shared.arguments import (
    CsvFile,
    Models,
    PlotFile,
    PricesOf,
    PrimitivesOnly,
    choose,
    numbers,
    one,
)
from baselines.shared.curves import BEST_KNOWN, Point, curve
from torchrlopt import _C, executor_table
from torchrlopt.agent import catalogue
from torchrlopt.agent.checkpoint import load, random_control
from torchrlopt.agent.search.searcher import AgentSearcher
from torchrlopt.machine.cost import cost_model
from torchrlopt.options import Options
from torchrlopt.plan.search import Searcher
from torchrlopt.substitutions import load_library

CLASSIC = ("greedy", "beam", "taso_1.05", "annealing")
RANDOM_NETWORK = "random_network"
#: Agents by name; "agent" is the one that the package follows by default.
AGENTS = ("mf", "wm", "wm_plus", "plan", "agent")
#: What these do depends on the seed.
SEEDED = ("annealing", RANDOM_NETWORK, "wm", "wm_plus")
STEPS = (100, 500)
#: The search that the agent is asked to reach with a hundredth of its expansions.
TASO, TASO_STEPS = "taso_1.05", 50_000
_NO_LIMIT_MS = 600_000.0


def main(
    models: Models = "all",
    executor: PricesOf = "eager",
    primitives_only: PrimitivesOnly = False,
    seconds: Annotated[str, typer.Option(help="Wall times, separated by commas.")] = "0.1,0.3,1,10",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of what depends on a seed.")] = 5,
    best_known_s: Annotated[
        float, typer.Option(min=0.01, help="Seconds of best_known, and of TASO's long run, for each model.")
    ] = 60.0,
    csv: CsvFile = None,
    plot: PlotFile = None,
) -> None:
    """Compare agents and searchers at equal time and steps, in predicted cost.

    Example: python -m baselines.agent_gap --models nasrnn --seconds 0.3,1 --seeds 2 --csv agent.csv
    """
    executor = one(executor, executor_table.names(), "executor")
    settings = Settings(executor, primitives_only, wall_times(seconds), best_known_s, seeds)
    graphs = {model: functools.partial(graph_of, model) for model in choose(models, NAMES, "model")}
    run(graphs, settings, csv, plot)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to compare.

    Attributes:
        executor: whose prices are used.
        primitives_only: leave the composites of the library out.
        seconds: wall times.
        best_known_seconds: of the search that all are measured against, for each model; TASO's long run ends
            after as many, too.
        seeds: runs of what depends on one.
    """

    executor: str = "eager"
    primitives_only: bool = False
    seconds: tuple[float, ...] = (0.1, 0.3, 1.0, 10.0)
    best_known_seconds: float = 60.0
    seeds: int = 5


@dataclasses.dataclass(frozen=True)
class Result:
    """The best cost of one searcher within one limit.

    Attributes:
        limit: such as "0.3 s" or "100 steps".
        point: model, searcher, seed, expansions, seconds and cost.
    """

    limit: str
    point: Point


def wall_times(text: str) -> tuple[float, ...]:
    """Seconds separated by commas, in ascending order; typer.BadParameter for anything else."""
    return tuple(sorted(numbers(text, float, "seconds", 0.001, 86_400)))


def limits(settings: Settings) -> list[str]:
    """Names of all limits in the order of the tables."""
    return [f"{seconds:g} s" for seconds in settings.seconds] + [f"{steps} steps" for steps in STEPS]


def classic(model: str, graph: _C.Graph, searcher: str, seed: int, settings: Settings) -> list[Result]:
    """One run without networks, read off at every limit: its best cost only falls."""
    longest = max(settings.seconds)
    run = curves.Settings(settings.executor, settings.primitives_only, seconds=longest)
    points = curve(model, graph, searcher, seed, run)
    results = []
    for seconds in settings.seconds:
        within = [point for point in points if point.seconds <= seconds]
        results.append(Result(f"{seconds:g} s", min(within or points[:1], key=lambda point: point.cost_ms)))
    for steps in STEPS:
        within = [point for point in points if point.steps <= steps]
        results.append(Result(f"{steps} steps", min(within or points[:1], key=lambda point: point.cost_ms)))
    return results


def guided(
    model: str, graph: _C.Graph, name: str, searcher: Searcher, seed: int, settings: Settings
) -> list[Result]:
    """Runs of an agent, one for each limit: it divides its budget beforehand."""
    library, cost = _library(settings), cost_model(settings.executor)
    budgets = [(f"{seconds:g} s", seconds * 1000, 0) for seconds in settings.seconds]
    budgets += [(f"{steps} steps", _NO_LIMIT_MS, steps) for steps in STEPS]
    results = []
    for limit, budget_ms, budget_steps in budgets:
        options = Options(searcher="greedy", budget_ms=budget_ms, budget_steps=budget_steps, seed=seed)
        plan = searcher.search(graph, library, cost, options)
        point = Point(model, name, seed, plan.expansions, plan.seconds, plan.cost_after_ms)
        results.append(Result(limit, point))
    return results


def _library(settings: Settings) -> _C.Library:
    return load_library(primitives_only=settings.primitives_only)


def agents_of(settings: Settings) -> dict[str, Searcher]:
    """Searchers that follow the agents of the package, by name; those that are not there are left out.

    Raises:
        AgentError: the default agent cannot be loaded.
    """
    library = _library(settings)
    options = {name: Options.from_dict({"searcher": name}) for name in AGENTS}
    return {
        name: catalogue.searcher_of(each, library)
        for name, each in options.items()
        if name == "agent" or catalogue.path_of(each).exists()
    }


def control(seed: int, settings: Settings) -> Searcher:
    """The default agent's search with two random networks of the same sizes."""
    library = _library(settings)
    agent = load(catalogue.path_of(Options.from_dict({"searcher": "agent"})), library)
    first, partner = (random_control(agent, library, 2 * seed + i) for i in range(2))
    return AgentSearcher(first, RANDOM_NETWORK, partner=partner)


def compare_model(
    model: str, graph: _C.Graph, agents: Mapping[str, Searcher], settings: Settings
) -> Iterator[Result]:
    """All searchers on one graph; the last two results are TASO's long run and the best known plan."""
    for name in CLASSIC:
        for seed in range(settings.seeds if name in SEEDED else 1):
            yield from classic(model, graph, name, seed, settings)
    for seed in range(settings.seeds):
        yield from guided(model, graph, RANDOM_NETWORK, control(seed, settings), seed, settings)
    for name, searcher in agents.items():
        for seed in range(settings.seeds if name in SEEDED else 1):
            yield from guided(model, graph, name, searcher, seed, settings)
    most = settings.best_known_seconds
    run = curves.Settings(settings.executor, settings.primitives_only, TASO_STEPS, most, most)
    yield Result(f"{TASO_STEPS} steps", curve(model, graph, TASO, 0, run)[-1])
    yield Result("", curve(model, graph, BEST_KNOWN, 0, run)[-1])


@dataclasses.dataclass(frozen=True)
class Gap:
    """How far a searcher stays above the best known plans.

    Attributes:
        mean: geometric mean over the models of cost / best known cost, less 1; mean over the seeds.
        interval: half the width of the 95 % confidence interval over the seeds; 0 with one seed.
        by_model: cost / best known cost, less 1, of each model; mean over the seeds.
    """

    mean: float
    interval: float
    by_model: dict[str, float]


def gaps(results: Sequence[Result]) -> dict[tuple[str, str], Gap]:
    """By limit and searcher."""
    best: dict[str, float] = {}
    for result in results:
        point = result.point
        best[point.model] = min(best.get(point.model, math.inf), point.cost_ms)
    ratios: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    for result in results:
        point = result.point
        if result.limit:
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
        found[key] = Gap(statistics.fmean(means), interval, models)
    return found


def _percent(gap: Gap) -> str:
    spread = f" ± {100 * gap.interval:.2f}" if gap.interval else ""
    return f"{100 * gap.mean:.2f}{spread}"


def render(results: Sequence[Result], settings: Settings) -> list[Table]:
    """Mean gaps at every limit, then the gap of each model at 0.3 s, or the wall time nearest to it."""
    found = gaps(results)
    searchers = list(dict.fromkeys(searcher for _, searcher in found))
    title = "Cost above the best known plans, geometric mean, in %"
    mean = terminal.table(title, ["searcher"], limits(settings))
    for searcher in searchers:
        mean.add_row(searcher, *(_percent(found[limit, searcher]) for limit in limits(settings)))
    seconds = min(settings.seconds, key=lambda each: abs(each - 0.3))
    title = f"Cost above the best known plan at {seconds:g} s, in %"
    each = terminal.table(title, ["model"], searchers)
    columns = [found[f"{seconds:g} s", searcher].by_model for searcher in searchers]
    for model in columns[0]:
        each.add_row(model, *(f"{100 * column[model]:.2f}" for column in columns))
    return [mean, each]


def verdicts(results: Sequence[Result], settings: Settings) -> Iterable[str]:
    """The agent against the same search with random networks (Wilcoxon, paired by model), limit by limit."""
    found = gaps(results)
    for limit in limits(settings):
        agent, control = found[limit, "agent"].by_model, found[limit, RANDOM_NETWORK].by_model
        pairs = [(agent[model], control[model]) for model in agent]
        differing = [(a, b) for a, b in pairs if abs(a - b) > 1e-6]
        wins = sum(a < b for a, b in differing)
        line = f"{limit}: the agent beats random networks on {wins}, loses on {len(differing) - wins}"
        if differing:
            mine, others = zip(*differing, strict=True)
            p = stats.wilcoxon(mine, others, alternative="less").pvalue
            line += f" of {len(pairs)} models, p = {p:.3g}"
        yield line
        dearer = sum(
            found[limit, "agent"].by_model[m] > found[limit, "greedy"].by_model[m] + 1e-6 for m in agent
        )
        if dearer:
            yield f"{limit}: greedy is cheaper than the agent on {dearer} models"
    limit = f"{TASO_STEPS // 100} steps"
    own, taso = found[limit, "agent"].by_model, found[f"{TASO_STEPS} steps", TASO].by_model
    close = sum(1 + own[model] <= 1.01 * (1 + taso[model]) for model in own)
    yield (
        f"{limit}: the agent's plan costs at most 1 % more than that of {TASO} after {TASO_STEPS} steps "
        f"on {close} of {len(own)} models"
    )


def write_plot(results: Sequence[Result], settings: Settings, path: Path) -> None:
    """Mean gap over wall time and over expansions, a line for each searcher."""
    found = gaps(results)
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    axes = (("seconds", settings.seconds, "{:g} s"), ("expansions", STEPS, "{} steps"))
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


def run(
    graphs: Mapping[str, Callable[[], _C.Graph]], settings: Settings, csv: Path | None, plot: Path | None
) -> None:
    """Compare on graphs, made one by one; print the tables and write the files."""
    console = terminal.console()
    console.print(curves.heading(settings.executor, settings.primitives_only), highlight=False)
    agents = agents_of(settings)
    results: list[Result] = []
    for model in track(graphs, description="searching", console=console, transient=True):
        results += compare_model(model, graphs[model](), agents, settings)
        if csv is not None:
            curves.write_csv([result.point for result in results], csv)
    for table in render(results, settings):
        console.print(table)
    for line in verdicts(results, settings):
        console.print(line, highlight=False, soft_wrap=True)
    if plot is not None:
        write_plot(results, settings, plot)


if __name__ == "__main__":
    typer.run(main)
