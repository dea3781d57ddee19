"""What the agents win: best cost of every searcher at equal wall time and at equal expansions.

Costs are those of the cost model; nothing is run. No model of the suite was in any agent's training.
`python -m baselines.agent_gap --help`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from baselines.graphs import graph_of
from baselines.models import NAMES
from baselines.shared import agent_tables, controls, curves, terminal
from baselines.shared.agent_tables import (
    TASO,
    TASO_STEPS,
    Kind,
    Result,
    Settings,
    budgets,
    render,
    verdicts,
    write_plot,
)
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
from torchrlopt.agent.checkpoint import load
from torchrlopt.machine.cost import cost_model
from torchrlopt.options import Options
from torchrlopt.plan.search import Searcher
from torchrlopt.substitutions import load_library

CORE = ("greedy", "chains", "restarts", "iterated", "parts", "beam", "taso_1.05", "annealing")
#: Agents by name; "agent" is the one that the package follows by default, the row "plan".
AGENTS = ("mf", "wm", "wm_plus", "agent")
#: What these do depends on the seed.
SEEDED = (
    "restarts",
    "iterated",
    "parts",
    "annealing",
    controls.RANDOM_NETWORK,
    controls.SHUFFLED_NETWORK,
    "wm",
    "wm_plus",
)
#: With the longest budget, these are what all are measured against.
REFERENCE = ("restarts", "iterated", BEST_KNOWN)


def main(
    models: Models = "all",
    executor: PricesOf = "eager",
    primitives_only: PrimitivesOnly = False,
    seconds: Annotated[str, typer.Option(help="Wall times, separated by commas.")] = "0.1,0.3,1,10",
    steps: Annotated[str, typer.Option(help="Limits of expansions, separated by commas.")] = "100,500",
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
    settings = Settings(
        executor, primitives_only, wall_times(seconds), limits_of_steps(steps), best_known_s, seeds
    )
    graphs = {model: functools.partial(graph_of, model) for model in choose(models, NAMES, "model")}
    run(graphs, settings, csv, plot)


def wall_times(text: str) -> tuple[float, ...]:
    """Seconds separated by commas, in ascending order; typer.BadParameter for anything else."""
    return tuple(sorted(numbers(text, float, "seconds", 0.001, 86_400)))


def limits_of_steps(text: str) -> tuple[int, ...]:
    """Numbers of expansions separated by commas, in ascending order; typer.BadParameter for anything else."""
    return tuple(sorted(numbers(text, int, "steps", 1, 10**9)))


def core(model: str, graph: _C.Graph, searcher: str, seed: int, settings: Settings) -> Iterator[Result]:
    """Runs of a searcher of the core, one for each limit."""
    for limit, (seconds, steps) in budgets(settings).items():
        run = curves.Settings(settings.executor, settings.primitives_only, steps, seconds)
        yield Result(limit, curve(model, graph, searcher, seed, run)[-1])


def guided(
    model: str, graph: _C.Graph, name: str, searcher: Searcher, seed: int, settings: Settings
) -> Iterator[Result]:
    """Runs of an agent, one for each limit: it divides its budget beforehand."""
    for limit, (seconds, steps) in budgets(settings).items():
        yield Result(limit, _guided_point(model, graph, name, searcher, seed, settings, seconds, steps))


def _guided_point(
    model: str,
    graph: _C.Graph,
    name: str,
    searcher: Searcher,
    seed: int,
    settings: Settings,
    seconds: float,
    steps: int = 0,
) -> Point:
    options = Options(searcher="greedy", budget_ms=seconds * 1000, budget_steps=steps, seed=seed)
    plan = searcher.search(graph, _library(settings), cost_model(settings.executor), options)
    return Point(model, name, seed, plan.expansions, plan.seconds, plan.cost_after_ms)


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


def control(name: str, seed: int, settings: Settings) -> Searcher:
    """The default agent's search, led by something else; see `baselines.shared.controls`."""
    library = _library(settings)
    agent = load(catalogue.path_of(Options.from_dict({"searcher": "agent"})), library)
    return controls.control(name, agent, library, seed)


def compare_model(
    model: str, graph: _C.Graph, agents: Mapping[str, Searcher], settings: Settings
) -> Iterator[Result]:
    """All searchers on one graph; the last results are TASO's long run and what all are measured against."""
    for name in CORE:
        for seed in _seeds(name, settings):
            yield from core(model, graph, name, seed, settings)
    for name in controls.NAMES:
        for seed in _seeds(name, settings):
            yield from guided(model, graph, name, control(name, seed, settings), seed, settings)
    for name, searcher in agents.items():
        for seed in _seeds(name, settings):
            yield from guided(model, graph, name, searcher, seed, settings)
    most = settings.best_known_seconds
    run = curves.Settings(settings.executor, settings.primitives_only, TASO_STEPS, most, most)
    yield Result(f"{TASO_STEPS} steps", curve(model, graph, TASO, 0, run)[-1])
    yield Result("", _guided_point(model, graph, "agent", agents["agent"], 0, settings, most))
    for name in REFERENCE:
        yield Result("", curve(model, graph, name, 0, dataclasses.replace(run, steps=0))[-1])


def _seeds(name: str, settings: Settings) -> range:
    return range(settings.seeds if name in SEEDED else 1)


def run(
    graphs: Mapping[str, Callable[[], _C.Graph]],
    settings: Settings,
    csv: Path | None,
    plot: Path | None,
    kinds: Mapping[str, Kind] | None = None,
) -> None:
    """Compare on graphs, made one by one; print the tables and write the files."""
    console = terminal.console()
    console.print(curves.heading(settings.executor, settings.primitives_only), highlight=False)
    agents = agents_of(settings)
    results: list[Result] = []
    for model in track(graphs, description="searching", console=console, transient=True):
        results += compare_model(model, graphs[model](), agents, settings)
        if csv is not None:
            agent_tables.write_csv(results, csv)
    for table in render(results, settings, kinds):
        console.print(table)
    for line in verdicts(results, settings):
        console.print(line, highlight=False, soft_wrap=True)
    if plot is not None:
        write_plot(results, settings, plot)


if __name__ == "__main__":
    typer.run(main)
