"""Whether further kinds of substitutions are worth having: `python -m training.plan_space --help`."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from statistics import geometric_mean
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
from training.plan_space.search import LEAST_GAIN, LEAST_SHARE, Found, ask, decisions, is_admitted
from training.progress import progress_bar

COLUMNS = tuple(field.name for field in dataclasses.fields(Found))


def main(
    families: Annotated[
        str, typer.Option(help=f"Of blocks, or all of them: {', '.join(instances.FAMILIES)}.")
    ] = "all",
    models: Annotated[str, typer.Option(help="Real models by name, all, or nothing.")] = "",
    graphs: Annotated[int, typer.Option(min=1, help="Of each family.")] = 10,
    seconds: Annotated[float, typer.Option(min=0.01, help="Of each search.")] = 1.0,
    executor: Annotated[str, typer.Option(help="By whose typical prices.")] = "eager",
    csv: CsvFile = None,
) -> None:
    """Plan graphs with each decision of `training/plan_space/decisions` and without: nothing is timed.

    A decision is admitted where it saves 2 % on a fifth of the graphs of a family, beyond the cheapest plan
    that is found without it in the same time.

    Example: python -m training.plan_space --families gated_mlp,relations --csv plan_space.csv
    """
    names = choose(families, instances.FAMILIES, "family")
    real = choose(models, (*NAMES, *EXTENDED, *HELD_OUT), "model") if models else []
    libraries = {"": load_library()}
    for name, text in decisions().items():
        libraries[name] = _C.Library(hand_written_text() + text)
    cost = cost_of(typical_prices(executor))
    found: list[Found] = []
    with progress_bar() as progress:
        task = progress.add_task("graphs", total=graphs * len(names) + len(real))
        given = {name: instances.blocks(name, graphs) for name in names}
        for family, of_family in {**given, instances.MODELS: instances.models(real)}.items():
            for name, graph in of_family:
                progress.update(task, description=f"{family} {name}", advance=1)
                found += ask(family, name, graph, libraries, cost, seconds)
            if csv is not None:
                csv_files.write(csv, COLUMNS, map(dataclasses.astuple, found))
    console = Console()
    for decision in [name for name in libraries if name]:
        console.print(_table(decision, [each for each in found if each.decision == decision]))


def _table(decision: str, found: Sequence[Found]) -> Table:
    table = Table(title=f"{decision}, by family", caption=_verdict(found))
    for head in (
        "family",
        "graphs",
        "chains above best, %",
        "saved, %",
        f"saves {LEAST_GAIN:.0%}",
        "used in",
    ):
        table.add_column(head, justify="left" if head == "family" else "right")
    for family, own in _by_family(found).items():
        table.add_row(
            family,
            str(len(own)),
            f"{100 * (geometric_mean(each.chains_us / each.best_us for each in own) - 1):.2f}",
            f"{100 * (1 - geometric_mean(1 - each.gain for each in own)):.2f}",
            str(sum(each.is_won for each in own)),
            str(sum(each.steps > 0 for each in own)),
        )
    return table


def _by_family(found: Sequence[Found]) -> dict[str, list[Found]]:
    by_family: dict[str, list[Found]] = defaultdict(list)
    for each in found:
        by_family[each.family].append(each)
    return by_family


def _verdict(found: Sequence[Found]) -> str:
    for_it = [family for family, own in _by_family(found).items() if is_admitted(own)]
    told = f"on a fifth ({LEAST_SHARE:.0%}) of the graphs of {', '.join(for_it) or 'no family'}"
    return f"saves {LEAST_GAIN:.0%} {told}"


if __name__ == "__main__":
    typer.run(main)
