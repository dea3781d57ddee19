"""Whether further kinds of substitutions are worth having: `python -m training.plan_space --help`."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from baselines.models import EXTENDED, HELD_OUT, NAMES
from baselines.shared import csv_files
from baselines.shared.arguments import CsvFile, choose
from torchrlopt import _C
from torchrlopt.substitutions import hand_written_text, load_library
from training.device.prices import cost_of, typical_prices
from training.plan_space import instances
from training.plan_space.search import (
    LEAST_GAIN,
    LEAST_SHARE,
    NOTHING,
    Effort,
    Found,
    ask,
    decisions,
    is_admitted,
)
from training.progress import progress_bar

COLUMNS = tuple(field.name for field in dataclasses.fields(Found))
EXECUTORS = ("eager", "onnxruntime", "openvino")


def main(
    families: Annotated[
        str, typer.Option(help=f"Of blocks, or all of them: {', '.join(instances.FAMILIES)}.")
    ] = "all",
    models: Annotated[str, typer.Option(help="Real models by name, all, or nothing.")] = "",
    graphs: Annotated[int, typer.Option(min=1, help="Of each family, at least.")] = 8,
    expansions: Annotated[int, typer.Option(min=1, help="Of each search.")] = Effort.expansions,
    seeds: Annotated[int, typer.Option(min=1, help="Of each searcher.")] = Effort.seeds,
    executors: Annotated[str, typer.Option(help="By whose typical prices.")] = "eager",
    csv: CsvFile = None,
) -> None:
    """Plan graphs with each decision of `training/plan_space/decisions` and without: nothing is timed.

    A decision is admitted where its steps save 2 % on a fifth of the graphs of a family, beyond the cheapest
    plan that any search found without them. The control searches the same library once more.

    Example: python -m training.plan_space --families gated_mlp,relations --csv plan_space.csv
    """
    names = choose(families, instances.FAMILIES, "family")
    real = choose(models, (*NAMES, *EXTENDED, *HELD_OUT), "model") if models else []
    whose = choose(executors, EXECUTORS, "executor")
    libraries = {NOTHING: load_library()}
    for name, text in decisions().items():
        libraries[name] = _C.Library(hand_written_text() + text)
    costs = {name: cost_of(typical_prices(name)) for name in whose}
    effort = Effort(expansions, seeds)
    found: list[Found] = []
    with progress_bar() as progress:
        given = list(instances.blocks(names, graphs))
        task = progress.add_task("graphs", total=len(given) + len(real))
        for family, name, graph in itertools.chain(given, instances.models(real)):
            progress.update(task, description=f"{family} {name}")
            for executor, cost in costs.items():
                found += ask(graph, libraries, cost, effort, (executor, family, name))
            if csv is not None:
                csv_files.write(csv, COLUMNS, map(dataclasses.astuple, found))
            progress.advance(task)
    console = Console()
    for executor in whose:
        mine = [each for each in found if each.executor == executor]
        console.print(_gaps(executor, [each for each in mine if each.decision == NOTHING]))
        for decision in libraries:
            console.print(_told(executor, [each for each in mine if each.decision == decision]))


def _gaps(executor: str, found: Sequence[Found]) -> Table:
    table = Table(title=f"greedy with chains above the best plan of the library as it is, {executor}")
    for head in ("family", "graphs", "median, %", "most, %", f"above by {LEAST_GAIN:.0%}"):
        table.add_column(head, justify="left" if head == "family" else "right")
    for family, own in by_family(found).items():
        gaps = [each.chains_us / min(each.best_us, each.with_us) - 1 for each in own]
        table.add_row(
            family,
            str(len(own)),
            f"{100 * median(gaps):.2f}",
            f"{100 * max(gaps):.2f}",
            str(sum(each >= LEAST_GAIN for each in gaps)),
        )
    return table


def by_family(found: Sequence[Found]) -> dict[str, list[Found]]:
    """Those of each family: one with two families stands under both."""
    of_each: dict[str, list[Found]] = defaultdict(list)
    for each in found:
        for family in each.families.split():
            of_each[family].append(each)
    return of_each


def _told(executor: str, found: Sequence[Found]) -> str:
    of_each = by_family(found)
    for_it = [family for family, own in of_each.items() if is_admitted(own)]
    most = max(each.gain for each in found)
    return (
        f"{found[0].decision}, {executor}: cheaper on {sum(each.gain > 0 for each in found)} of {len(found)} "
        f"graphs, by {100 * most:.2f} % at most; by {LEAST_GAIN:.0%} on {sum(each.is_won for each in found)} "
        f"of them, on a fifth ({LEAST_SHARE:.0%}) of the graphs of {', '.join(for_it) or 'no family'}."
    )


if __name__ == "__main__":
    typer.run(main)
