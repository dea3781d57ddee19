"""How many measurements find the fastest of many variants, where the cheapest by price are measured first.

python -m training.latency.many training/latency/many_variants/eager.jsonl.xz
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import stats

from torchrlopt.machine.cost import cost_model
from training.latency.dataset import Row, groups, read
from training.latency.scores import GREEDY

COUNTS = (1, 2, 4, 8, 16, 32)
ENOUGH = 0.02  # what is lost by less is the same


def losses(rows: Sequence[Row], price_us: Sequence[float]) -> list[float]:
    """For each of `COUNTS`, how much longer the fastest of so many takes than the fastest of all, as a share.

    Greedy's graph is always measured. What is fastest is chosen by other samples than those it is judged by,
    so a loss may be negative.

    Args:
        rows: that were measured together.
        price_us: of each.
    """
    order = [GREEDY, *(int(i) for i in np.argsort(price_us, kind="stable") if i != GREEDY)]

    def again_us(count: int) -> float:
        return rows[min(order[:count], key=lambda i: rows[i].us)].again_us

    return [again_us(count) / again_us(len(rows)) - 1 for count in COUNTS]


def main(
    file: Annotated[Path, typer.Argument(help="A file of `python -m training.latency.collect`.")],
) -> None:
    """Print what is lost where only some are measured."""
    together = [own for own in groups(read([file])).values() if len(own) > 2]
    if len(together) < 2:
        raise typer.BadParameter(f"{file} has fewer than two graphs with variants")
    found = np.array([losses(own, [_price_us(row) for row in own]) for own in together])
    table = Table(title=f"{len(together)} graphs, {sum(map(len, together))} variants")
    for column in ("measured", "above the fastest of all", "95 % interval", f"within {ENOUGH:.0%}"):
        table.add_column(column, justify="right")
    for count, own in zip(COUNTS, found.T, strict=True):
        table.add_row(str(count), f"{own.mean():.1%}", _interval(own), f"{(own <= ENOUGH).mean():.0%}")
    Console().print(table)


def _price_us(row: Row) -> float:
    return float(cost_model(row.executor, threads=row.threads).total(row.graph)["time_us"])


def _interval(values: NDArray[np.float64]) -> str:
    found = stats.bootstrap((values,), np.mean, method="percentile", rng=0).confidence_interval
    return f"{found.low:.1%} to {found.high:.1%}"


if __name__ == "__main__":
    typer.run(main)
