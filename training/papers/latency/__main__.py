"""Fit the latency model and compare it with its rivals: `python -m training.papers.latency --help`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import torch
import typer
from scipy import stats

from torchrlopt import _C
from torchrlopt.agent.latency import LatencyModel, Parts, parts_of
from torchrlopt.agent.observation import Schema
from torchrlopt.machine.cost import cost_model
from training.papers.latency.dataset import read, together
from training.papers.latency.fit import Measured, fit, forecast
from training.papers.latency.network import LatencyNetwork

Forecast = Callable[[pd.DataFrame, Measured], np.ndarray]
Prepared = tuple[pd.DataFrame, Measured]

GREEDY = 1  # index of greedy's graph among the graphs of a base
COUNTS = (0, 1, 3, 7, 1000)  # see `gain`; the last one stands for all graphs


def pairs(us: np.ndarray, noise: np.ndarray, forecasts: np.ndarray) -> tuple[float, int]:
    """Of the pairs that differ by more than three times their noise: correctly ordered ones, and all.

    A tie in the forecast counts as half.
    """
    right, total = 0.0, 0
    for i, j in itertools.combinations(range(len(us)), 2):
        distance = us[i] / us[j] - 1
        if abs(distance) > 3 * max(noise[i], noise[j]):
            difference = forecasts[i] - forecasts[j]
            right += 0.5 if difference == 0 else float((difference > 0) == (distance > 0))
            total += 1
    return right, total


def gain(us: np.ndarray, again_us: np.ndarray, forecasts: np.ndarray, count: int) -> float:
    """Time saved over greedy's graph by measuring some graphs and taking the fastest.

    The choice and the saving use different samples; otherwise noise would count as a gain.

    Args:
        us: measured.
        again_us: measured, from other samples.
        forecasts: of the times.
        count: number of graphs measured in addition to greedy's, those with the fastest forecasts; with 0,
            the graph with the fastest forecast is taken without measuring.
    """
    order = np.argsort(forecasts, kind="stable").tolist()
    tried = [GREEDY, *[i for i in order if i != GREEDY][:count]]
    chosen = min(tried, key=lambda i: us[i]) if count else order[0]
    return float(1 - again_us[chosen] / again_us[GREEDY])


def score(chosen: Sequence[tuple[pd.DataFrame, np.ndarray]]) -> list[str]:
    """Median error, Kendall's tau and gains of forecasts, with 95 % intervals over the bases."""
    columns = [[rows[name].to_numpy() for name in ("us", "again_us", "noise")] for rows, _ in chosen]
    told = [forecasts for _, forecasts in chosen]
    errors = [np.abs(each / us - 1) for each, (us, _, _) in zip(told, columns, strict=True)]
    right = np.array([pairs(us, noise, each) for each, (us, _, noise) in zip(told, columns, strict=True)])
    gains = np.array(
        [
            [gain(us, again, each, n) for n in COUNTS]
            for each, (us, again, _) in zip(told, columns, strict=True)
        ]
    )

    def text(statistic: Callable[[np.ndarray], float], shown: str) -> str:
        places = np.arange(len(chosen))
        settings = {"vectorized": False, "n_resamples": 500, "method": "percentile", "rng": 0}
        found = stats.bootstrap((places,), statistic, **settings).confidence_interval
        return f"{statistic(places):{shown}} ({found.low:{shown}} to {found.high:{shown}})"

    return [
        text(lambda at: float(np.median(np.concatenate([errors[i] for i in at]))), ".1%"),
        text(lambda at: float(2 * right[at, 0].sum() / right[at, 1].sum() - 1), ".2f"),
        *(text(lambda at, i=i: float(gains[at, i].mean()), ".1%") for i in range(len(COUNTS))),  # type: ignore[misc]
    ]


def main(
    data: Annotated[list[Path], typer.Argument(help="Files of `python -m training.papers.latency.collect`.")],
    members: Annotated[int, typer.Option(min=1, help="Networks of the ensemble.")] = 4,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 60,
    seed: Annotated[int, typer.Option(help="Of the training.")] = 0,
    test: Annotated[str, typer.Option(help="Splits that are scored, by commas.")] = "dev",
    scored: Annotated[
        Path | None, typer.Option(help="File of other measurements, to be scored in place of the data's own.")
    ] = None,
) -> None:
    """Fit on training bases and score on others.

    Every tenth training base belongs to `dev`: known families, but not trained on.

    Example: python -m training.papers.latency runs/latency.jsonl --test dev,held_out
    """
    of_data = _prepared(data)
    training = [each for each in of_data if split_of(each[1].base) == "train"]
    prepared = of_data if scored is None else _prepared([scored])
    splits = sorted({split_of(each.base) for _, each in prepared})
    missing = [split for split in test.split(",") if split not in splits]
    if missing:
        raise typer.BadParameter(f"no measurements of {', '.join(missing)}; there are: {', '.join(splits)}")
    executors = sorted({each.executor for _, each in training})
    rivals = _rivals(training, executors, members, epochs, seed)
    counts = [f"{count} more" if count < 100 else "all" for count in COUNTS[1:]]
    header = ["forecast", "median error", "Kendall", "gain unmeasured", *counts]
    for split, executor in itertools.product(test.split(","), executors):
        own = [each for each in prepared if (split_of(each[1].base), each[1].executor) == (split, executor)]
        if len(own) > 1:
            found = [
                (name, *score([(each[0], rival(*each)) for each in own])) for name, rival in rivals.items()
            ]
            graphs = sum(len(each[0]) for each in own)
            typer.echo(f"\n{split}, {executor}: {len(own)} bases, {graphs} graphs")
            typer.echo(pd.DataFrame(found, columns=header).to_string(index=False))


def _prepared(files: Sequence[Path]) -> list[Prepared]:
    """Groups of graphs that were measured together, without those disturbed by other load."""
    calm = [own for own in together(read(files)) if own["is_calm"].all() and len(own) > 1]
    return [(own, Measured.of(own)) for own in calm]


def split_of(base: str) -> str:
    """The split that a base belongs to."""
    split, name = base.split()
    return "dev" if split == "train" and int(name) % 10 == 9 else split


def _parts(rows: pd.DataFrame) -> list[Parts]:
    prices = [cost_model(row.executor, threads=row.threads) for row in rows.itertuples()]
    return [parts_of(_C.parse_graph(text), cost) for text, cost in zip(rows["text"], prices, strict=True)]


def _rivals(
    training: Sequence[Prepared], executors: Sequence[str], members: int, epochs: int, seed: int
) -> dict[str, Forecast]:
    networks = fit([measured for _, measured in training], executors, members, epochs, seed)
    factors: dict[str, LatencyModel] = {}
    level: dict[str, float] = {}
    for executor in executors:
        own = [each for each in training if each[1].executor == executor]
        rows = pd.concat([each for each, _ in own])
        factors[executor] = LatencyModel.fit(_parts(rows), rows["us"].tolist())
        logs = [each.log_us - each.graphs.price_us.log() for _, each in own]
        level[executor] = float(torch.cat(logs).median().exp())
    torch.manual_seed(seed)
    untrained = [LatencyNetwork(Schema.current(), tuple(executors)).eval()]
    torch.nn.init.normal_(untrained[0].head[-1].weight, std=0.3)  # type: ignore[arg-type]

    def of(chosen: Sequence[LatencyNetwork]) -> Forecast:
        return lambda rows, each: forecast(chosen, each).exp().numpy()

    return {
        "nothing changes": lambda rows, each: np.full(len(rows), rows["us"].iloc[0]),
        "any order": lambda rows, each: np.random.default_rng(seed + len(rows)).permutation(len(rows)) + 1.0,
        "price": lambda rows, each: each.graphs.price_us.numpy(),
        "price, one factor": lambda rows, each: each.graphs.price_us.numpy() * level[each.executor],
        "price, a factor for each kind": lambda rows, each: np.array(
            [factors[each.executor].latency_us(parts) for parts in _parts(rows)]
        ),
        "random network": of(untrained),
        "one network": of(networks[:1]),
        f"{len(networks)} networks": of(networks),
    }


if __name__ == "__main__":
    typer.run(main)
