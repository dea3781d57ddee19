"""Searches graphs of thousands of operators and compares the results with greedy search with chains.

    python -m training.scores.large --operators 1000,5000,20000 --seconds 1,3,10 --csv large.csv

The graphs are stacks of blocks that training never saw, in realistic sizes; in every other graph each block
is repeated, as in real models. All searches get the same processor time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from baselines.shared import csv_files, paired, terminal
from baselines.shared.arguments import numbers, writable
from torchrlopt.agent import catalogue
from torchrlopt.options import Options
from torchrlopt.plan.search import ClassicSearcher
from torchrlopt.substitutions import load_library
from training.device.prices import cost_of, typical_prices
from training.episodes.random_keys import Purpose
from training.graphs.curriculum import Sample, stacked_graph

RIVAL = "chains"
SEARCHERS = ("greedy", "iterated", "parts", "agent")
REPEATS = (1, 8)  # copies of each block, alternating between graphs


@dataclasses.dataclass(frozen=True)
class Found:
    """Result of one search on one graph.

    Attributes:
        operators: requested number of operators.
        graph: its number.
        kind: "image" or "sequence", and the number of consecutive copies of each block.
        size: actual number of operators.
        searcher: its name.
        budget_s: time limit in seconds.
        seconds: time used.
        before_ms: predicted time of the graph, in milliseconds.
        cost_ms: the same after the plan.
        expansions: graphs whose substitutions were enumerated.
    """

    operators: int
    graph: int
    kind: str
    size: int
    searcher: str
    budget_s: float
    seconds: float
    before_ms: float
    cost_ms: float
    expansions: int


COLUMNS = tuple(field.name for field in dataclasses.fields(Found))


def graph_of(operators: int, number: int, seed: int) -> tuple[Sample, str]:
    """A graph and its kind."""
    repeats = REPEATS[number % len(REPEATS)]
    sample = stacked_graph(Purpose.TEST_GRAPH, seed, number, operators, operators=operators, repeats=repeats)
    kind = "image" if "size" in sample.parameters else "sequence"
    return sample, f"{kind} x{repeats}"


def search(operators: int, number: int, seed: int, searcher: str, budget_s: float) -> Found:
    """Run one search on one graph."""
    sample, kind = graph_of(operators, number, seed)
    options, library = Options(budget_ms=budget_s * 1000), load_library()
    is_agent = searcher == options.searcher
    by = catalogue.searcher_of(options, library) if is_agent else ClassicSearcher(searcher)
    plan = by.search(sample.graph, library, cost_of(typical_prices()), options)
    return Found(
        operators,
        number,
        kind,
        sample.graph.num_operators,
        searcher,
        budget_s,
        plan.seconds,
        plan.cost_before_ms,
        plan.cost_after_ms,
        plan.expansions,
    )


def table_of(results: Sequence[Found]) -> list[str]:
    """Each searcher compared with the rival, by size, as lines of Markdown.

    Intervals are bootstrapped over the graphs; p-values are corrected for all comparisons (Holm).
    """
    costs: dict[tuple[int, float, str], dict[str, float]] = {}
    for each in results:
        key = (each.operators, each.budget_s, each.searcher)
        costs.setdefault(key, {})[str(each.graph)] = each.cost_ms
    rows = []
    for (operators, budget_s, searcher), mine in costs.items():
        other = costs[operators, budget_s, RIVAL]
        if searcher != RIVAL:
            found = paired.compared(mine, other, {graph: graph for graph in mine})
            rows.append((operators, budget_s, searcher, found))
    heads = ("operators", "seconds", "searcher", f"of the cost of {RIVAL}", "95 % interval", "better, worse")
    lines = [f"| {' | '.join((*heads, 'p (Holm)'))} |", "|---" * (len(heads) + 1) + "|"]
    corrected = paired.holm([found.p for *_, found in rows])
    for (operators, budget_s, searcher, found), p in zip(rows, corrected, strict=True):
        figures = f"{found.ratio:.4f} | {found.low:.4f} to {found.high:.4f} | {found.better}, {found.worse}"
        lines.append(f"| {operators:,} | {budget_s:g} | {searcher} | {figures} | {p:.2g} |")
    return lines


def main(
    operators: Annotated[str, typer.Option(help="Sizes, separated by commas.")] = "1000,5000,20000",
    seconds: Annotated[str, typer.Option(help="Of each search, one for each size.")] = "1,3,10",
    graphs: Annotated[int, typer.Option(min=1, help="Of each size.")] = 12,
    seed: Annotated[int, typer.Option(min=0, help="Of the graphs: another makes others.")] = 0,
    csv: Annotated[Path | None, typer.Option(help="CSV file to write, anew after each graph.")] = None,
) -> None:
    """Compare searches of large graphs by predicted cost."""
    sizes = numbers(operators, int, "operators", 1, 10**6)
    budgets = numbers(seconds, float, "seconds", 0.001, 86_400)
    if len(sizes) != len(budgets):
        raise typer.BadParameter(f"{len(sizes)} sizes need as many times, got {len(budgets)}")
    writable(csv)
    torch.set_num_threads(1)
    console, results = terminal.console(), []
    with terminal.progress(console) as bar:
        task = bar.add_task("", total=len(sizes) * graphs * (1 + len(SEARCHERS)))
        for size, budget_s in zip(sizes, budgets, strict=True):
            for number in range(graphs):
                for searcher in (RIVAL, *SEARCHERS):
                    bar.update(task, description=f"{size:,} operators, graph {number}, {searcher}")
                    results.append(search(size, number, seed, searcher, budget_s))
                    bar.advance(task)
                if csv is not None:
                    csv_files.write(csv, COLUMNS, [dataclasses.astuple(each) for each in results])
    for line in (*table_of(results), "", f"By the typical prices of eager PyTorch. {terminal.machine()}"):
        console.print(line, soft_wrap=True, highlight=False)


if __name__ == "__main__":
    typer.run(main)
