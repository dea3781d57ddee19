"""Types of calls within an error budget, with measured answers: drawn from `training.dear_precision`."""

from __future__ import annotations

from training.papers.experiment import Data, Shown, recorded
from training.precision.regret import table_of


def _shown(data: Data) -> Shown:
    times = data.main[data.main["metric"] == "time"]
    least = times.groupby("model", sort=False)["value"].min()
    return {}, {
        "table": table_of(data.main),
        "graphs": ", ".join(f"{name} {share:.2f}" for name, share in least.items()),
        "seeds": times["round"].nunique(),
    }


DEAR_PRECISION = recorded(
    "Types of calls within an error budget: rows at equal numbers of measured answers",
    "Not in a paper: Parker 2021 asks in section 5 what learning brings where a step is expensive",
    _shown,
    "dear_precision",
)
