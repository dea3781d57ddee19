"""How much of the gap between constant and measured sensitivities other ways to know them close."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_RESAMPLES = 2000


def table_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Time of the calls by way and budget, and how much of the gap is closed, with a 95 % interval.

    The gap of a model is the mean over budgets of the logarithm of the time with constant sensitivities over
    that with measured ones. The interval is a bootstrap over models, and over seeds within them.
    """
    times = frame[frame.metric == "time"]
    means = frame[frame.metric != "time"].groupby(["peer", "metric"], sort=False).value.mean()
    own = means.unstack().reindex(times.peer.unique())
    logs = {
        str(way): np.log(rows.pivot_table(index="model", columns="round", values="value", aggfunc=_geometric))
        for way, rows in times.groupby("peer", sort=False)
    }
    rows = []
    for way, rows_of in times.groupby("peer", sort=False):
        shares = rows_of.groupby("setting", sort=False).value.agg(_geometric)
        closed = gap_closed(logs, str(way))
        more = own.loc[way]
        rows.append({
            "by": way,
            **{str(name).removeprefix("budget="): f"{share:.3f}" for name, share in shares.items()},
            "gap closed": closed,
            "correlation": _shown(more.get("correlation"), "{:.2f}"),
            "seconds": _shown(more.get("seconds"), "{:.2f}"),
            "runs": _shown(more.get("runs"), "{:.1f}"),
        })  # fmt: skip
    return pd.DataFrame(rows)


def gap_closed(logs: Mapping[str, pd.DataFrame], way: str) -> str:
    """Share of the gap between constant and measured sensitivities that a way closes, with its interval."""
    if way in ("constant", "measured"):
        return ""
    constant, measured = logs["constant"].mean(axis=1), logs["measured"].mean(axis=1)
    rounds = logs[way].loc[constant.index].to_numpy()
    gap = (constant - measured).to_numpy()
    gain = constant.to_numpy()[:, None] - rounds
    drawn = [gain[models][:, seeds].mean() / gap[models].mean() for models, seeds in resamples(*gain.shape)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return f"{gain.mean() / gap.mean():.2f} ({low:.2f} to {high:.2f})"


def resamples(num_models: int, num_seeds: int) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Models and seeds, drawn with replacement for a bootstrap; the same in every call."""
    random = np.random.default_rng(0)
    for _ in range(_RESAMPLES):
        yield random.integers(0, num_models, num_models), random.integers(0, num_seeds, num_seeds)


def _geometric(values: pd.Series[float]) -> float:
    return float(np.exp(np.log(values).mean()))


def _shown(value: Any, form: str) -> str:
    return "" if value is None or pd.isna(value) else form.format(value)
