"""What the agents win: best cost of every searcher at equal wall time and at equal expansions.

Costs are those of the cost model; nothing is run. No model of the suite was in any agent's training.
`python baselines/compare.py --agent`.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from baselines.search_gap import BEST_KNOWN, Point, curve, write_csv
from baselines.search_gap import Settings as ClassicSettings
from torchrlopt import _C
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


def numbers(text: str) -> list[float]:
    """Seconds separated by commas; typer.BadParameter for anything else."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0.001 <= each <= 86_400 for each in found):
        raise typer.BadParameter(f"expected seconds separated by commas, got {text!r}")
    return found


def limits(settings: Settings) -> list[str]:
    """Names of all limits in the order of the tables."""
    return [f"{seconds:g} s" for seconds in settings.seconds] + [f"{steps} steps" for steps in STEPS]


def classic(model: str, graph: _C.Graph, searcher: str, seed: int, settings: Settings) -> list[Result]:
    """One run without networks, read off at every limit: its best cost only falls."""
    longest = max(settings.seconds)
    run = ClassicSettings(settings.executor, settings.primitives_only, seconds=longest)
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
    return load_library(primitives_only=True) if settings.primitives_only else load_library()


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
    run = ClassicSettings(settings.executor, settings.primitives_only, TASO_STEPS, most, most)
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
    from scipy import stats

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
        means = [math.exp(statistics.fmean(map(math.log, each.values()))) - 1 for each in by_seed.values()]
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
    mean = Table(title="Cost above the best known plans, geometric mean, in %", box=box.SIMPLE)
    mean.add_column("searcher", no_wrap=True)
    for limit in limits(settings):
        mean.add_column(limit, justify="right", no_wrap=True)
    for searcher in searchers:
        mean.add_row(searcher, *(_percent(found[limit, searcher]) for limit in limits(settings)))
    seconds = min(settings.seconds, key=lambda each: abs(each - 0.3))
    each = Table(title=f"Cost above the best known plan at {seconds:g} s, in %", box=box.SIMPLE)
    each.add_column("model", no_wrap=True)
    for searcher in searchers:
        each.add_column(searcher, justify="right", no_wrap=True)
    columns = [found[f"{seconds:g} s", searcher].by_model for searcher in searchers]
    for model in columns[0]:
        each.add_row(model, *(f"{100 * column[model]:.2f}" for column in columns))
    return [mean, each]


def verdicts(results: Sequence[Result], settings: Settings) -> Iterable[str]:
    """The agent against the same search with random networks (Wilcoxon, paired by model), limit by limit."""
    from scipy import stats

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
    mine, taso = found[limit, "agent"].by_model, found[f"{TASO_STEPS} steps", TASO].by_model
    close = sum(1 + mine[model] <= 1.01 * (1 + taso[model]) for model in mine)
    yield (
        f"{limit}: the agent's plan costs at most 1 % more than that of {TASO} after {TASO_STEPS} steps "
        f"on {close} of {len(mine)} models"
    )


def write_plot(results: Sequence[Result], settings: Settings, path: Path) -> None:
    """Mean gap over wall time and over expansions, a line for each searcher."""
    from matplotlib.figure import Figure

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
    console = Console() if sys.stdout.isatty() else Console(width=160)
    library = "primitives only" if settings.primitives_only else "the full library"
    console.print(
        f"{library}, prices of {settings.executor}; predicted costs, nothing is run", highlight=False
    )
    agents = agents_of(settings)
    results: list[Result] = []
    for model in track(graphs, description="searching", console=console, transient=True):
        results += compare_model(model, graphs[model](), agents, settings)
        if csv is not None:
            write_csv([result.point for result in results], csv)
    for table in render(results, settings):
        console.print(table)
    for line in verdicts(results, settings):
        console.print(line, highlight=False, soft_wrap=True)
    if plot is not None:
        write_plot(results, settings, plot)
