"""Fits the latency model and compares it with its rivals: `python -m training.latency --help`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from torchrlopt.agent.latency import LatencyModel, Parts, parts_of
from torchrlopt.agent.observation import Schema
from torchrlopt.machine.cost import cost_model
from training.latency.dataset import Row, groups, read
from training.latency.fit import Measured, fit, forecast
from training.latency.network import LatencyNetwork
from training.latency.scores import COUNTS, Group, Score, score

Prepared = tuple[Sequence[Row], Measured]
Forecast = Callable[[Sequence[Row], Measured], np.ndarray]


def main(
    data: Annotated[list[Path], typer.Argument(help="Files of `python -m training.latency.collect`.")],
    members: Annotated[int, typer.Option(min=1, help="Networks of the ensemble.")] = 4,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 60,
    seed: Annotated[int, typer.Option(help="Of the training.")] = 0,
    test: Annotated[str, typer.Option(help="Splits that are scored, by commas.")] = "dev",
    scored: Annotated[
        Path | None, typer.Option(help="File of other measurements, to be scored in place of the data's own.")
    ] = None,
) -> None:
    """Fit on training bases and score on others.

    Every tenth training base is `dev`: of known families, not trained on.

    Example: python -m training.latency runs/latency.jsonl --test dev,held_out
    """
    of_data = _prepared(data)
    training = [each for each in of_data if _split(each[0][0]) == "train"]
    prepared = of_data if scored is None else _prepared([scored])
    splits = sorted({_split(rows[0]) for rows, _ in prepared})
    missing = [split for split in test.split(",") if split not in splits]
    if missing:
        raise typer.BadParameter(f"no measurements of {', '.join(missing)}; there are: {', '.join(splits)}")
    executors = _executors(training)
    networks = fit([measured for _, measured in training], executors, members, epochs, seed)
    factors = {name: _factors(training, name) for name in executors}
    rivals = _rivals(training, factors, networks, seed)
    console = Console()
    for split in test.split(","):
        for executor in executors:
            chosen = [
                each for each in prepared if _split(each[0][0]) == split and each[0][0].executor == executor
            ]
            if len(chosen) > 1:
                console.print(_table(f"{split}, {executor}", chosen, rivals))


def _prepared(files: Sequence[Path]) -> list[Prepared]:
    """What was measured together, where it was measured in calm."""
    together = groups(read(files)).values()
    calm = [own for own in together if all(row.is_calm for row in own) and len(own) > 1]
    return [(own, Measured.of(own)) for own in calm]


def _factors(training: Sequence[Prepared], executor: str) -> LatencyModel:
    measured = [row for rows, _ in training for row in rows if row.executor == executor]
    pairs = [(_parts(row), row.us) for row in measured]
    return LatencyModel.fit([parts for parts, _ in pairs], [us for _, us in pairs])


def _executors(training: Sequence[Prepared]) -> list[str]:
    return sorted({rows[0].executor for rows, _ in training})


def _split(row: Row) -> str:
    split, name = row.base.split()
    return "dev" if split == "train" and int(name) % 10 == 9 else split


def _rivals(
    training: Sequence[Prepared],
    factors: Mapping[str, LatencyModel],
    networks: Sequence[LatencyNetwork],
    seed: int,
) -> dict[str, Forecast]:
    level: dict[str, float] = {}
    for executor in factors:
        own = [each for rows, each in training if rows[0].executor == executor]
        ratios = [each.log_us - each.graphs.price_us.log() for each in own]
        level[executor] = float(torch.cat(ratios).median().exp())
    torch.manual_seed(seed)
    untrained = [LatencyNetwork(Schema.current(), tuple(factors)).eval()]
    torch.nn.init.normal_(untrained[0].head[-1].weight, std=0.3)  # type: ignore[arg-type]
    return {
        "nothing changes": lambda rows, each: np.full(len(rows), rows[0].us),
        "any order": lambda rows, each: np.random.default_rng(seed + len(rows)).permutation(len(rows)) + 1.0,
        "price": lambda rows, each: each.graphs.price_us.numpy(),
        "price, one factor": lambda rows, each: each.graphs.price_us.numpy() * level[rows[0].executor],
        "price, a factor for each kind": lambda rows, each: np.array(
            [factors[row.executor].latency_us(_parts(row)) for row in rows]
        ),
        "random network": lambda rows, each: forecast(untrained, each)[0].exp().numpy(),
        "one network": lambda rows, each: forecast(networks[:1], each)[0].exp().numpy(),
        f"{len(networks)} networks": lambda rows, each: forecast(networks, each)[0].exp().numpy(),
    }


def _parts(row: Row) -> Parts:
    return parts_of(row.graph, cost_model(row.executor, threads=row.threads))


def _table(title: str, chosen: Sequence[Prepared], rivals: dict[str, Forecast]) -> Table:
    table = Table(title=f"{title}: {len(chosen)} bases, {sum(len(rows) for rows, _ in chosen)} graphs")
    counts = [f"of {count}" if count < 100 else "of all" for count in COUNTS[1:]]
    for column in ("forecast", "median error", "Kendall", "gain unmeasured", *counts):
        table.add_column(column, justify="right" if column != "forecast" else "left")
    for name, rival in rivals.items():
        found = score([_group(rows, rival(rows, each)) for rows, each in chosen])
        table.add_row(name, *_cells(found))
    return table


def _group(rows: Sequence[Row], forecast_us: np.ndarray) -> Group:
    us, again_us, noise = (
        np.array([getattr(row, name) for row in rows]) for name in ("us", "again_us", "noise")
    )
    forecast = np.asarray(forecast_us, dtype=float)
    return Group(rows[0].base, rows[0].executor, us, again_us, noise, forecast)


def _cells(found: Score) -> list[str]:
    def share(each: tuple[float, float, float]) -> str:
        return f"{each[0]:.1%} ({each[1]:.1%} to {each[2]:.1%})"

    kendall = "{:.2f} ({:.2f} to {:.2f})".format(*found.kendall)
    return [share(found.error), kendall, *map(share, found.gains)]


if __name__ == "__main__":
    typer.run(main)
