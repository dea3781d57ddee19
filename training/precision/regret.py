"""How far rows are from the best assignment that any of them has found, after equal numbers of answers."""

from __future__ import annotations

import numpy as np
import pandas as pd

from baselines.shared.gap_closed import resamples
from baselines.shared.tables import in_order


def table_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Geometric means of time over the best known of each graph, by row and number of answers, as texts.

    The interval, of 95 %, is a bootstrap over graphs, and over seeds within them.
    """
    times = frame[frame.metric == "time"]
    logs = np.log(times.value) - np.log(times.groupby("model").value.transform("min"))
    times = times.assign(value=logs)
    asked = frame[frame.metric == "answers"].groupby("peer", sort=False).value.mean()
    rows = []
    for peer in in_order(times.peer):
        row = {"row": peer, "answers": f"{asked[peer]:.0f}"}
        for setting, own in times[times.peer == peer].groupby("setting", sort=False):
            table = own.pivot_table(index="model", columns="round", values="value").to_numpy()
            drawn = [table[graphs][:, seeds].mean() for graphs, seeds in resamples(*table.shape)]
            low, high = np.exp(np.percentile(drawn, [2.5, 97.5]))
            row[f"after {str(setting).removeprefix('answers=')}"] = (
                f"{np.exp(table.mean()):.3f} ({low:.3f} to {high:.3f})"
            )
        rows.append(row)
    return pd.DataFrame(rows)
