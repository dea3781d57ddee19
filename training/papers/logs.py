"""The logs and results of row trainings, as tables."""

from __future__ import annotations

import numpy as np
import pandas as pd

from training.papers import rows
from training.papers.experiment import Results, Runs, frame
from training.papers.rows import AGAIN, Steps
from training.papers.runner import Result, Scale

#: Titles of plans by name.
PLANS = {
    "greedy": "greedy", "taso": "TASO's search", "agent": "our agent",
    **{f"random {row}": f"random, {title}'s steps" for row, title in rows.TITLES.items()},
    **rows.TITLES, AGAIN: AGAIN,
}  # fmt: skip


def of_rows(results: Results, *rows_and_graphs: str) -> dict[tuple[str, str, int], Result]:
    """Training results by row, graph and seed; restricted to the given rows or graphs."""
    return {
        key[1:]: each
        for key, each in results.items()
        if key[0] == "row" and all(name in key for name in rows_and_graphs)
    }


def log_of(results: Results, row: str, *columns: str) -> pd.DataFrame:
    """Columns of a row's training logs; NaN if a row does not log one."""
    found = []
    for (_, graph, seed), each in of_rows(results, row).items():
        log = pd.DataFrame(each["log"]).reindex(columns=["update", *columns])
        found.append(log.rename(columns={"update": "epoch"}).assign(graph=graph, seed=seed))
    return pd.concat(found, ignore_index=True).astype({"epoch": int})[["graph", "seed", "epoch", *columns]]


def even(log: pd.DataFrame, by: str = "graph") -> pd.DataFrame:
    """Cut the seeds to the epochs of the shortest training; the time limit ends some before others."""
    of_seed = log.groupby([by, "seed"], sort=False)
    shortest = of_seed["epoch"].transform("size").groupby(log[by]).transform("min")
    return log[of_seed.cumcount() < shortest]


def last_fifth(log: pd.DataFrame) -> pd.DataFrame:
    """The last fifth of the epochs, after `even`."""
    epochs = sorted(log["epoch"].unique())
    return log[log["epoch"].isin(epochs[-max(1, len(epochs) // 5) :])]


def random_of(results: Results) -> pd.DataFrame:
    """By row whose steps it takes, and graph: mean return of random play, and greedy's saving."""
    return frame(
        [
            (row, key[1], float(np.mean(gains)), each["gains"]["greedy"])
            for key, each in results.items()
            if key[0] == "rivals"
            for row, gains in each["random_gains"].items()
        ],
        "row", "graph", "random", "greedy",
    ).set_index("row")  # fmt: skip


def normalised(values: pd.Series[float]) -> pd.Series[float]:
    """Scale to [0, 1] by the smallest and largest value."""
    return (values - values.min()) / max(1e-12, float(values.max() - values.min()))


def trained(row: str, scale: Scale) -> Runs:
    """The trainings of a row on all graphs, with their rivals."""
    return {**rows.trainings(row, scale), **rows.rivals_on(scale)}


def best_of(results: Results, row: str, graph: str) -> tuple[int, Steps]:
    """Seed and plan of a row's best policy on a graph."""
    own = {key[2]: each["played"] for key, each in of_rows(results, row, graph).items()}
    seed = max(own, key=lambda seed: own[seed]["best"])
    return seed, own[seed]["steps"]
