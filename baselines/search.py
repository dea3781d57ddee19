"""Compares searchers, and counts what the library brings.

Costs are those of the cost model; nothing is run. `python -m baselines.search --help`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from scipy import stats

from baselines.graphs import graph_of
from baselines.models import NAMES
from baselines.shared import controls, paired, plots, terminal
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
from baselines.shared.tables import Results, in_order, of, rich
from torchrlopt import _C, executor_table
from torchrlopt.agent import catalogue
from torchrlopt.agent.checkpoint import load
from torchrlopt.agent.search.searcher import AgentSearcher
from torchrlopt.errors import SubstitutionError
from torchrlopt.machine.cost import cost_model
from torchrlopt.options import SearchOptions
from torchrlopt.plan.search import Plan, search
from torchrlopt.substitutions import FIRES, load_library

PARTS = ("searchers", "library")
#: Name in tables and files: arguments of `_C.search`.
CORE: dict[str, dict[str, Any]] = {
    name: {"searcher": name}
    for name in ("greedy", "chains", "restarts", "iterated", "local", "beam", "annealing")
} | {"taso_1.05": {"searcher": "taso", "alpha": 1.05}}
AGENT = "agent"
#: Searchers whose results depend on the seed.
SEEDED = ("restarts", "iterated", "local", "annealing", *controls.NAMES, AGENT)
#: With the longest budget, these and the agent define the best known cost.
REFERENCES = ("restarts", "iterated", "best_known")
REFERENCE = "reference"
#: Relative tolerance within which a plan counts as good as the best known one.
CLOSE = 0.005
#: The search that the agent should match with a hundredth of its expansions.
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
        best_known_seconds: per model, of each search that contributes to the best known cost; also the time
            limit of TASO's long run.
        seeds: runs of what depends on a seed.
    """

    executor: str = "eager"
    primitives_only: bool = False
    seconds: tuple[float, ...] = (0.1, 0.3, 1.0, 10.0)
    steps: tuple[int, ...] = (100, 500)
    best_known_seconds: float = 60.0
    seeds: int = 5

    @property
    def budgets(self) -> dict[str, tuple[float, int]]:
        """Seconds and expansions (0: no limit) of all limits by name, in the order of the tables."""
        timed = {f"{seconds:g} s": (seconds, 0) for seconds in self.seconds}
        return timed | {f"{steps} steps": (_NO_LIMIT_S, steps) for steps in self.steps}

    @property
    def library(self) -> _C.Library:
        """The substitutions."""
        return load_library(primitives_only=self.primitives_only)


@dataclasses.dataclass(frozen=True)
class Kind:
    """The kind of a graph.

    Attributes:
        structure: equal for graphs that differ in sizes only.
        families: of its blocks.
    """

    structure: str
    families: frozenset[str]


def main(
    parts: Annotated[str, typer.Option(help=f"Of {', '.join(PARTS)}, separated by commas.")] = "searchers",
    models: Models = "all",
    executor: PricesOf = "eager",
    primitives_only: PrimitivesOnly = False,
    seconds: Annotated[str, typer.Option(help="Wall times, separated by commas.")] = "0.1,0.3,1,10",
    steps: Annotated[str, typer.Option(help="Limits of expansions, separated by commas.")] = "100,500",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of what depends on a seed.")] = 5,
    best_known_s: Annotated[
        float, typer.Option(min=0.01, help="Seconds of each search that all are measured against.")
    ] = 60.0,
    write_fires: Annotated[
        bool,
        typer.Option("--write-fires", help="Of library: keep the counts for `substitutions list`."),
    ] = False,
    csv: CsvFile = None,
    plot: PlotFile = None,
) -> None:
    """Compare searchers at equal time and steps; plan by the library.

    searchers: the cost of the best plan of each, relative to the best known plan. No model of the suite was
    in the agent's training; the controls are the agent's search, guided by something untrained.
    library: greedy's plans, and which substitutions fire on the models.

    Example: python -m baselines.search --models nasrnn --seconds 0.3,1 --seeds 2 --csv search.csv
    """
    chosen, named = choose(parts, PARTS, "part"), choose(models, NAMES, "model")
    executor = one(executor, executor_table.names(), "executor")
    if write_fires and set(named) != set(NAMES):
        raise typer.BadParameter("--write-fires needs all models")
    settings = Settings(
        executor, primitives_only, wall_times(seconds), limits_of_steps(steps), best_known_s, seeds
    )
    console = terminal.console()
    results = Results("search", csv, batch=1, threads=1)
    graphs = {model: functools.partial(graph_of, model) for model in named}
    terminal.announce(
        console, "primitives only" if primitives_only else "the full library", f"prices of {executor}"
    )
    if "searchers" in chosen:
        run(graphs, settings, results)
    if "library" in chosen:
        plan_greedily(graphs, results, write_fires)
    for title, table in tables(results.frame).items():
        console.print(rich(title, table))
    if plot is not None and "searchers" in chosen:
        plots.lines(curves(results.frame), "cost above best known, %", plot)


def wall_times(text: str) -> tuple[float, ...]:
    """Parse seconds separated by commas, in ascending order; raises typer.BadParameter for anything else."""
    return tuple(sorted(numbers(text, float, "seconds", 0.001, 86_400)))


def limits_of_steps(text: str) -> tuple[int, ...]:
    """Parse numbers of expansions separated by commas, in ascending order; else raises typer.BadParameter."""
    return tuple(sorted(numbers(text, int, "steps", 1, 10**9)))


# ---- searchers

Found = tuple[int, float, float]
"""Expansions, seconds and milliseconds of cost of a search."""


def run(
    graphs: Mapping[str, Callable[[], _C.Graph]],
    settings: Settings,
    results: Results,
    kinds: Mapping[str, Kind] | None = None,
) -> None:
    """Run all searchers on graphs, which are created one at a time."""
    with terminal.progress(terminal.console()) as progress:
        task = progress.add_task("", total=len(graphs))
        for model, make in graphs.items():
            progress.update(task, description=model)
            if kinds is not None:
                kind = kinds[model]
                families = " ".join(sorted(kind.families))
                results.add(model, "", "kind", None, note=f"{kind.structure} | {families}")
            for name, limit, seed, (expansions, seconds, cost_ms) in compare(make(), settings):
                common = {"setting": limit, "round": seed}
                results.add(model, name, "cost", cost_ms, "ms", **common)
                results.add(model, name, "expansions", expansions, "", **common)
                results.add(model, name, "time", seconds, "s", **common)
            results.save()
            progress.advance(task)


def compare(graph: _C.Graph, settings: Settings) -> Iterator[tuple[str, str, int, Found]]:
    """Run all searchers on one graph; yields name, limit, seed and result.

    Raises:
        AgentError: the agent cannot be loaded.
    """
    budgets, most = settings.budgets, settings.best_known_seconds
    shipped = load(catalogue.path_of(SearchOptions()), settings.library)

    def seeds(name: str) -> range:
        return range(settings.seeds if name in SEEDED else 1)

    for name in CORE:
        for seed in seeds(name):
            for limit, (seconds, steps) in budgets.items():
                yield name, limit, seed, _by_core(graph, CORE[name], seed, settings, seconds, steps)
    for name in (*controls.NAMES, AGENT):
        for seed in seeds(name):
            searcher = AgentSearcher(shipped) if name == AGENT else controls.control(name, shipped, seed)
            for limit, (seconds, steps) in budgets.items():  # an agent divides its budget in advance
                yield name, limit, seed, _by_agent(graph, searcher, seed, settings, seconds, steps)
    long = f"{TASO_STEPS} steps"
    yield TASO, long, 0, _by_core(graph, CORE[TASO], 0, settings, most, TASO_STEPS)
    yield AGENT, REFERENCE, 0, _by_agent(graph, AgentSearcher(shipped), 0, settings, most, 0)
    for name in REFERENCES:
        yield name, REFERENCE, 0, _by_core(graph, {"searcher": name}, 0, settings, most, 0)


def _by_core(
    graph: _C.Graph, how: Mapping[str, Any], seed: int, settings: Settings, seconds: float, steps: int
) -> Found:
    limits = {"budget_ms": 1000 * seconds, "budget_steps": steps}
    found = _C.search(graph, settings.library, cost_model(settings.executor), seed=seed, **limits, **how)
    return found["expansions"], found["seconds"], found["cost_after_us"] / 1000


def _by_agent(
    graph: _C.Graph, searcher: AgentSearcher, seed: int, settings: Settings, seconds: float, steps: int
) -> Found:
    options = SearchOptions(searcher="greedy", budget_ms=seconds * 1000, budget_steps=steps, seed=seed)
    plan = searcher.search(graph, settings.library, cost_model(settings.executor), options)
    return plan.expansions, plan.seconds, plan.cost_after_ms


# ---- tables of searchers


def above_best(frame: pd.DataFrame) -> pd.DataFrame:
    """Cost relative to the best known one of each model (columns), by limit, searcher and seed."""
    costs = of(frame, metric="cost")
    best = costs.groupby("model", sort=False).value.min()
    own = costs[costs.setting != REFERENCE]
    ratios = own.assign(value=own.value / own.model.map(best))
    keys = ["setting", "peer", "round"]
    return ratios.pivot_table(index=keys, columns="model", values="value", sort=False)[in_order(own.model)]


def by_searcher(frame: pd.DataFrame) -> pd.DataFrame:
    """The same, averaged over the seeds, by limit and searcher."""
    return above_best(frame).groupby(level=["setting", "peer"], sort=False).mean()


def geometric_gap(ratios: pd.DataFrame) -> pd.Series:
    """Geometric mean over the models (columns), minus 1."""
    return np.exp(np.log(ratios).mean(axis=1)) - 1


def gap_table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per searcher, one column per limit: mean gap in %, with its interval over the seeds."""
    gaps = 100 * geometric_gap(above_best(frame))
    expansions = of(frame, metric="expansions").groupby(["setting", "peer"], sort=False).value.mean()

    def cell(own: pd.Series) -> str:
        spread = ""
        if len(own) > 1 and own.std() > 0:
            spread = f" ± {stats.t.ppf(0.975, len(own) - 1) * own.sem():.2f}"
        return f"{own.mean():.2f}{spread}"

    texts = gaps.groupby(level=["setting", "peer"], sort=False).agg(cell)
    texts += " (" + expansions.reindex(texts.index).map("{:.0f}".format) + ")"
    # The pivot of a Series does not keep the order.
    peers, limits = (in_order(gaps.index.get_level_values(name)) for name in ("peer", "setting"))
    rows = [[texts.get((limit, peer), "-") for limit in limits] for peer in peers]
    shown = pd.DataFrame(rows, columns=limits)
    shown.insert(0, "searcher", peers)
    return shown


def kinds_of(frame: pd.DataFrame) -> dict[str, Kind]:
    """Structure and families of the graphs, if the table has them."""
    notes = of(frame, metric="kind").set_index("model").note
    parts = {model: note.partition(" | ") for model, note in notes.items()}
    return {
        str(model): Kind(structure, frozenset(names.split()))
        for model, (structure, _, names) in parts.items()
    }


def rival_table(frame: pd.DataFrame) -> pd.DataFrame:
    """The agent against every other searcher within the main limit, with intervals over structures."""
    limit = main_limit(frame)
    ratios, kinds = by_searcher(frame).loc[limit], kinds_of(frame)
    made = of(frame, setting=limit).groupby(["metric", "peer"], sort=False).value.mean()
    mine = ratios.loc[AGENT].to_dict()
    structures = {model: kinds[model].structure if kinds else model for model in mine}
    rivals = [name for name in ratios.index if name != AGENT]
    pairs = [paired.compared(mine, ratios.loc[name].to_dict(), structures) for name in rivals]
    corrected = paired.holm([pair.p for pair in pairs])
    rows = []
    for name, pair, p in zip(rivals, pairs, corrected, strict=True):
        interval = f"{pair.low:.4f} to {pair.high:.4f}"
        rows.append((name, f"{pair.ratio:.4f}", interval, f"{pair.better}, {pair.worse}", f"{p:.2g}"))
    rows.append((AGENT, "", "", "", ""))
    columns = ("rival", "agent / rival", "95 % interval", "better, worse", "p (Holm)")
    shown = pd.DataFrame(rows, columns=list(columns))
    gaps = 100 * geometric_gap(above_best(frame).loc[limit]).groupby(level="peer").mean()
    shown.insert(1, "above best known, %", [f"{gaps[name]:.2f}" for name in shown.rival])
    shown["expansions"] = [f"{made['expansions', name]:.0f}" for name in shown.rival]
    shown["seconds"] = [f"{made['time', name]:.3f}" for name in shown.rival]
    return shown


def main_limit(frame: pd.DataFrame) -> str:
    """The wall time nearest to 0.3 s."""
    timed = [limit for limit in in_order(frame.setting) if limit.endswith(" s")]
    return min(timed, key=lambda limit: abs(float(limit.removesuffix(" s")) - 0.3))


def family_table(frame: pd.DataFrame) -> pd.DataFrame:
    """The gaps in % of the graphs that have a block of each family."""
    ratios, kinds = by_searcher(frame).loc[main_limit(frame)], kinds_of(frame)
    rows = {}
    for family in sorted({name for kind in kinds.values() for name in kind.families}):
        own = [model for model, kind in kinds.items() if family in kind.families]
        gaps = 100 * geometric_gap(ratios[own])
        rows[f"`{family}`"] = pd.concat([pd.Series({"graphs": str(len(own))}), gaps.map("{:.2f}".format)])
    return pd.DataFrame(rows).T.rename_axis("family").reset_index()


def model_table(frame: pd.DataFrame) -> pd.DataFrame:
    """The gap in % of each searcher on each model, and on how many models it is as good as the best."""
    ratios = by_searcher(frame).loc[main_limit(frame)]
    shown = (100 * (ratios - 1)).map("{:.2f}".format).T
    close = (ratios <= 1 + CLOSE).sum(axis=1)
    shown.loc[f"within {100 * CLOSE:g} %"] = [f"{count} of {ratios.shape[1]}" for count in close]
    return shown.rename_axis("model").reset_index()


def curves(frame: pd.DataFrame) -> pd.DataFrame:
    """The mean gap in % of each searcher (columns) over the wall times."""
    gaps = 100 * geometric_gap(by_searcher(frame)).unstack("peer")
    gaps = gaps[gaps.index.str.endswith(" s")]
    gaps.index = pd.Index([float(limit.removesuffix(" s")) for limit in gaps.index], name="seconds")
    return gaps.sort_index()


# ---- the library


def plan_greedily(
    graphs: Mapping[str, Callable[[], _C.Graph]], results: Results, write_fires: bool = False
) -> None:
    """Plan each model by greedy search, and find which substitutions fire.

    Without a time limit that could cut a search short, a plan is the same on every machine.
    """
    options = SearchOptions(searcher="greedy", budget_ms=_NO_LIMIT_S * 1000)
    cost, library = cost_model("eager"), load_library()
    fires: dict[str, list[str]] = {}
    for model, make in graphs.items():
        graph = make()
        plan = search(graph, library, cost, options)
        results.add(model, "none", "predicted", plan.cost_before_ms, "ms")
        results.add(model, "greedy", "predicted", plan.cost_after_ms, "ms")
        used = sorted({step for step, _ in plan.steps})
        results.add(model, "greedy", "steps", len(plan.steps), note=" ".join(used))
        found = firing(graph, library, plan)
        results.add(model, "greedy", "fires", len(found), note=" ".join(sorted(found)))
        for name in found:
            fires.setdefault(name, []).append(model)
        results.save()
    if write_fires:
        FIRES.write_text(json.dumps(dict(sorted(fires.items())), indent=1) + "\n", encoding="utf-8")


def firing(graph: _C.Graph, library: _C.Library, plan: Plan) -> set[str]:
    """Substitutions that are applicable to the graph or to any graph along the plan."""
    found: set[str] = set()
    matches = _C.MatchSet(graph, library)
    for step in (*plan.steps, None):
        for match in matches.matches(library):
            name = match["name"]
            if name not in found and _applies(graph, library, name, match["location"]):
                found.add(name)
        if step is not None:
            graph = library.apply(graph, *step)
            matches = matches.after(graph, library)
    return found


def _applies(graph: _C.Graph, library: _C.Library, name: str, location: int) -> bool:
    try:
        library.apply(graph, name, location)
    except SubstitutionError:
        return False
    return True


def library_table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per model; the last one has the geometric means of the predicted gains."""
    own = of(frame, metric="predicted")
    wide = own.pivot_table(index="model", columns="peer", values="value", sort=False)
    gains = wide["none"] / wide["greedy"]
    gains.loc["**geomean**"] = np.exp(np.log(gains).mean())
    shown = gains.map("{:.3f}x".format).to_frame("predicted speed-up")
    notes = of(frame, metric="fires").set_index("model").note.str.split()
    shown["substitutions that fire"] = notes.map(len).astype(str)
    shown.loc["**geomean**", "substitutions that fire"] = f"{len(set().union(*notes))} in all"
    return shown.rename_axis("model").reset_index()


def tables(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The tables of the parts that ran, by title."""
    found = {}
    if len(of(frame, metric="cost")):
        limit = main_limit(frame)
        found["Cost above the best known plans, geometric mean, in %; (expansions)"] = gap_table(frame)
        found[f"The agent against each rival at {limit}: ratio of costs"] = rival_table(frame)
        if kinds_of(frame):
            found[f"Cost above the best known plans at {limit} by family, in %"] = family_table(frame)
        found[f"Cost above the best known plan at {limit}, in %"] = model_table(frame)
    if len(of(frame, metric="predicted")):
        found["Predicted speed-up by greedy's plans"] = library_table(frame)
    return found


if __name__ == "__main__":
    typer.run(main)
