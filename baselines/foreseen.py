"""How well prices foretell where a runtime beats our `eager`: `python -m baselines.foreseen --help`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from scipy.stats import kendalltau

from baselines.graphs import graph_of
from baselines.peers.case import is_ours
from baselines.shared import csv_files
from baselines.shared.comparison import CSV_COLUMNS, LATER_COLUMNS
from torchrlopt import executor_table
from torchrlopt.plan.foreseen import RUNTIMES, cheap, price_shares


def main(
    files: Annotated[list[Path], typer.Argument(help="CSV files that comparisons wrote, of one setting.")],
    executor: Annotated[str, typer.Option(help="Of ours, which is compared with `eager`.")] = "auto",
) -> None:
    """Print a row for each model that ours was timed on, sorted by what the other executor takes.

    "takes" is its time as a share of that of our executor `eager`; "price" the typical price of a runtime for
    the captured graph, with one thread and one call of it, as a share of eager's price. Where one is at most
    the bound that `executor_table` names, `executor="default"` tries that runtime first.

    Example: python -m baselines.foreseen baselines/results/cpu_batch1_float32_xeon.csv
    """
    times: dict[str, dict[str, float]] = {}
    for path in files:
        for line in csv_files.read(path, CSV_COLUMNS, LATER_COLUMNS):
            if is_ours(line["peer"]) and line["median_ms"] and line["weights"] in ("check", ""):
                own = times.setdefault(line["model"], {})
                own[line["executor"]] = float(line["median_ms"])
                own["batch"] = float(line["batch"])
    typer.echo("\n".join(rows_of(times, executor)))


def rows_of(times: Mapping[str, Mapping[str, float]], executor: str) -> list[str]:
    """The table in Markdown, and what it says in a line.

    Args:
        times: Milliseconds by executor, and the batch, of each model.
        executor: Of ours.

    Raises:
        typer.BadParameter: No model was timed in both executors.
    """
    baseline = executor_table.BASELINE
    takes = {
        model: own[executor] / own[baseline]
        for model, own in times.items()
        if executor in own and baseline in own
    }
    if not takes:
        raise typer.BadParameter(f"no model was timed in {baseline} and in {executor}")
    prices = {
        model: price_shares(graph_of(model, int(times[model]["batch"])), {}, RUNTIMES) for model in takes
    }
    titles = ["model", f"`{baseline}` ms", f"`{executor}` takes", *(f"price, `{name}`" for name in RUNTIMES)]
    lines = [f"| {' | '.join([*titles, 'first'])} |", "|---" * (len(titles) + 1) + "|"]
    for model in sorted(takes, key=takes.__getitem__):
        own = prices[model]
        cells = [model, f"{times[model][baseline]:.1f}", f"{takes[model]:.2f}"]
        cells += [f"{own[name]:.3f}" if own else "-" for name in RUNTIMES]
        lines.append(f"| {' | '.join([*cells, *(f'`{name}`' for name in cheap(own)[:1] or ['eager'])])} |")
    priced = [model for model in takes if prices[model]]
    taus = {
        name: kendalltau([takes[model] for model in priced], [prices[model][name] for model in priced])
        for name in RUNTIMES
    }
    said = ", ".join(f"{name} {tau.statistic:.2f}" for name, tau in taus.items())
    return [*lines, "", f"Kendall's tau of time and price over {len(priced)} models: {said}."]


if __name__ == "__main__":
    typer.run(main)
