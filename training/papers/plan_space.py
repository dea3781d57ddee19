"""Whether further kinds of substitutions are worthwhile: `python -m training.papers.plan_space --help`.

Finds additional decisions that would offer a search gains that greedy search misses.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from baselines.graphs import graph_of
from baselines.models import EXTENDED, HELD_OUT, NAMES
from baselines.shared.arguments import CsvFile, choose
from torchrlopt import _C
from torchrlopt.substitutions import library_text, load_library
from training.device.prices import cost_of, typical_prices
from training.episodes.random_keys import Purpose
from training.graphs.blocks import HELD_OUT_FAMILIES, IMAGE_BLOCKS, SEQUENCE_BLOCKS
from training.graphs.curriculum import USUAL, Split, sample_graph
from training.graphs.unseen_blocks import UNSEEN_IMAGE_BLOCKS, UNSEEN_SEQUENCE_BLOCKS
from training.progress import progress_bar

DECISIONS = Path(__file__).parent / "decisions"
NOTHING = "nothing"  # the control: the same library, searched once more with other seeds
LEAST_GAIN = 0.02  # of time, relative to the cheapest plan without the decision
LEAST_SHARE = 0.2  # of the graphs of a family
EXECUTORS = ("eager", "onnxruntime", "openvino")
#: In microseconds by price: first_us of the graph itself; chains_us of greedy search with chains, without the
#: decision; best_us of the cheapest plan of any search that has no step of it; with_us of the cheapest plan
#: that has one (for the control: the cheapest that it found; NaN if there is none). steps: of the decision in
#: it.
COLUMNS = (
    "executor", "decision", "families", "graph", "first_us", "chains_us", "best_us", "with_us", "steps",
)  # fmt: skip
_ROUNDING = 1e-9
_BLOCK = 0.25  # curriculum progress at which graphs have one or two blocks
_DRAWS = 200  # maximum draws per requested graph
_BY_SPLIT: dict[Split, tuple[str, ...]] = {
    "train": tuple(
        name for name in (*IMAGE_BLOCKS, *SEQUENCE_BLOCKS) if name not in {*HELD_OUT_FAMILIES, "fragment"}
    ),
    "test": (*UNSEEN_IMAGE_BLOCKS, *UNSEEN_SEQUENCE_BLOCKS, *sorted(HELD_OUT_FAMILIES)),
}
FAMILIES = tuple(dict.fromkeys(name for names in _BY_SPLIT.values() for name in names))
Plan = tuple[float, list[tuple[str, int]]]
"""Microseconds by price, and (substitution, location)."""


def blocks(families: Sequence[str], graphs: int) -> Iterator[tuple[str, str, _C.Graph]]:
    """Families, name and graph of distinct structures; those with two blocks count for both families.

    Args:
        families: of `FAMILIES`.
        graphs: minimum per family; fewer if there are no more.
    """
    for split, of_split in _BY_SPLIT.items():
        wanted = set(families) & set(of_split)
        counts: Counter[str] = Counter()
        seen: set[tuple[str, ...]] = set()
        for number in range(_DRAWS * graphs):
            left = {name for name in wanted if counts[name] < graphs}
            if not left:
                break
            sample = sample_graph(Purpose.PLAN_SPACE, number, split=split, progress=_BLOCK, sizes=USUAL)
            if left & set(sample.families) and sample.structures not in seen:
                seen.add(sample.structures)
                own = list(dict.fromkeys(name for name in sample.families if name in wanted))
                counts.update(own)
                yield " ".join(own), f"{split}_{number}", sample.graph


def plans(
    graph: _C.Graph,
    library: _C.Library,
    cost: _C.CostModel,
    expansions: int,
    seeds: Sequence[int],
    best: Plan | None = None,
) -> list[Plan]:
    """The plan of each search: greedy with chains, then restarts and iterated local search for each seed.

    Args:
        graph: the graph to plan.
        library: the substitutions.
        cost: prices.
        expansions: limit of each search.
        seeds: of each searcher.
        best: a plan from which iterated local search is started as well.
    """

    def plan(searcher: str, seed: int = 0, first: Sequence[tuple[str, int]] = ()) -> Plan:
        limits = {"budget_ms": 600_000.0, "budget_steps": expansions, "seed": seed, "first": first}
        found = _C.search(graph, library, cost, searcher=searcher, **limits)
        return float(found["cost_after_us"]), found["steps"]

    found = [plan("chains")]
    for seed in seeds:
        found += [plan(searcher, seed) for searcher in ("restarts", "iterated")]
        if best is not None:
            found.append(plan("iterated", seed, best[1]))
    return found


def ask(
    graph: _C.Graph, libraries: Mapping[str, _C.Library], cost: _C.CostModel, expansions: int, seeds: int
) -> list[tuple[str, float, float, float, float, int]]:
    """Plan one graph without any decision, again without (the control), and with each, all alike.

    Args:
        graph: the graph to plan.
        libraries: by decision; the one without is `NOTHING`.
        cost: prices.
        expansions: of each search.
        seeds: of each searcher.

    Returns:
        Decision, and the numbers of `COLUMNS`.
    """
    once = plans(graph, libraries[NOTHING], cost, expansions, range(seeds))
    best = min(once)
    found = {
        name: plans(graph, library, cost, expansions, range(seeds, 2 * seeds), best)
        for name, library in libraries.items()
    }
    firsts = float(cost.metrics(graph)["time_us"]), once[0][0]
    rows = [(NOTHING, *firsts, best[0], min(found[NOTHING])[0], 0)]
    for decision in libraries:
        if decision != NOTHING:
            library = libraries[decision]
            own = {each for each in library.names if library.family(each) == decision}
            # Searches of a larger library take other random paths: a plan of theirs that does not use the
            # decision was available to the smaller library too, so it counts as one without.
            counted = [(sum(name in own for name, _ in steps), us) for us, steps in found[decision]]
            without = [us for us, _ in (*once, *found[NOTHING])] + [us for count, us in counted if not count]
            with_us, count = min(((us, count) for count, us in counted if count), default=(math.nan, 0))
            rows.append((decision, *firsts, min(without), with_us, count))
    return rows


def gains(found: pd.DataFrame) -> pd.Series[float]:
    """Saving of a decision, as a share of the cheapest plan without it; 0 if it saves nothing."""
    saved = (1 - found["with_us"] / found["best_us"]).fillna(0.0)
    return saved.where(saved > _ROUNDING, 0.0)


def by_family(found: pd.DataFrame) -> pd.DataFrame:
    """One row per graph and family: a graph with two families appears under both."""
    return found.assign(family=found["families"].str.split()).explode("family", ignore_index=True)


def admitted(found: pd.DataFrame) -> list[str]:
    """Families in which enough graphs gain enough from a decision."""
    won = (gains(found) >= LEAST_GAIN).groupby(found["family"], sort=False).mean()
    return list(won[won >= LEAST_SHARE].index)


def main(
    families: Annotated[str, typer.Option(help=f"Of blocks, or all of them: {', '.join(FAMILIES)}.")] = "all",
    models: Annotated[str, typer.Option(help="Real models by name, all, or nothing.")] = "",
    graphs: Annotated[int, typer.Option(min=1, help="Of each family, at least.")] = 8,
    expansions: Annotated[int, typer.Option(min=1, help="Of each search.")] = 600,
    seeds: Annotated[int, typer.Option(min=1, help="Of each searcher.")] = 2,
    executors: Annotated[str, typer.Option(help="By whose typical prices.")] = "eager",
    csv: CsvFile = None,
) -> None:
    """Plan graphs with and without each decision of `training/papers/decisions`; nothing is timed.

    A decision is admitted if its steps save 2 % on a fifth of the graphs of a family, beyond the cheapest
    plan that any search found without them. The control searches the same library once more.

    Example: python -m training.papers.plan_space --families gated_mlp,relations --csv plan_space.csv
    """
    names = choose(families, FAMILIES, "family")
    real = choose(models, (*NAMES, *EXTENDED, *HELD_OUT), "model") if models else []
    whose = choose(executors, EXECUTORS, "executor")
    libraries = {NOTHING: load_library()}
    for path in sorted(DECISIONS.glob("*.txt")):
        libraries[path.stem] = _C.Library(library_text() + path.read_text(encoding="utf-8"))
    costs = {name: cost_of(typical_prices(name)) for name in whose}
    rows: list[tuple[object, ...]] = []
    with progress_bar() as progress:
        given = [*blocks(names, graphs), *(("models", name, None) for name in real)]
        task = progress.add_task("graphs", total=len(given))
        for family, name, graph in given:
            progress.update(task, description=f"{family} {name}")
            for executor, cost in costs.items():
                told = ask(graph or graph_of(name), libraries, cost, expansions, seeds)
                rows += [(executor, decision, family, name, *numbers) for decision, *numbers in told]
            if csv is not None:
                pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(csv, index=False, na_rep="nan")
            progress.advance(task)
    _tell(by_family(pd.DataFrame(rows, columns=list(COLUMNS))))


def _tell(found: pd.DataFrame) -> None:
    for executor, mine in found.groupby("executor", sort=False):
        control = mine[mine["decision"] == NOTHING]
        gaps = control["chains_us"] / control[["best_us", "with_us"]].min(axis="columns") - 1
        table = (100 * gaps).groupby(control["family"], sort=False).agg(["size", "median", "max"]).round(2)
        table[f"above by {LEAST_GAIN:.0%}"] = (gaps >= LEAST_GAIN).groupby(control["family"]).sum()
        typer.echo(f"\n{executor}: percent by which greedy with chains is above the best plan\n{table}")
        for decision, own in mine.groupby("decision", sort=False):
            saved = gains(own.drop_duplicates("graph"))
            typer.echo(
                f"{decision}, {executor}: cheaper on {(saved > 0).sum()} of {len(saved)} graphs, by "
                f"{100 * saved.max():.2f} % at most; by {LEAST_GAIN:.0%} on {(saved >= LEAST_GAIN).sum()} of "
                f"them, on a fifth of the graphs of {', '.join(admitted(own)) or 'no family'}."
            )


if __name__ == "__main__":
    typer.run(main)
