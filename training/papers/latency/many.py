"""How many measurements find the fastest of many variants, when they are measured in order of price.

python -m training.papers.latency.many training/papers/latency/many_variants/eager.jsonl.xz
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from scipy import stats

from torchrlopt import _C
from torchrlopt.machine.cost import cost_model
from training.papers.latency.__main__ import GREEDY
from training.papers.latency.dataset import read, together

COUNTS = (1, 2, 4, 8, 16, 32)
ENOUGH = 0.02  # smaller losses count as none


def losses(us: Sequence[float], again_us: Sequence[float], price_us: Sequence[float]) -> list[float]:
    """Relative loss for each of `COUNTS`: the fastest of that many, compared with the fastest of all.

    Greedy's graph is always measured. The fastest is chosen by other samples than those it is judged by, so a
    loss may be negative.
    """
    order = [GREEDY, *(int(i) for i in np.argsort(price_us, kind="stable") if i != GREEDY)]
    found = [again_us[min(order[:count], key=lambda i: us[i])] for count in (*COUNTS, len(order))]
    return [each / found[-1] - 1 for each in found[:-1]]


def main(
    file: Annotated[Path, typer.Argument(help="A file of `python -m training.papers.latency.collect`.")],
) -> None:
    """Print what is lost if only some variants are measured."""
    groups = [own for own in together(read([file])) if len(own) > 2]
    if len(groups) < 2:
        raise typer.BadParameter(f"{file} has fewer than two graphs with variants")
    found = []
    for own in groups:
        cost = cost_model(own["executor"].iloc[0], threads=int(own["threads"].iloc[0]))
        prices = [float(cost.total(_C.parse_graph(text))["time_us"]) for text in own["text"]]
        found.append(losses(own["us"].tolist(), own["again_us"].tolist(), prices))
    rows = []
    for count, lost in zip(COUNTS, np.array(found).T, strict=True):
        between = stats.bootstrap((lost,), np.mean, method="percentile", rng=0).confidence_interval
        interval = f"{between.low:.1%} to {between.high:.1%}"
        rows.append((count, f"{lost.mean():.1%}", interval, f"{(lost <= ENOUGH).mean():.0%}"))
    header = ["measured", "above the fastest of all", "95 % interval", f"within {ENOUGH:.0%}"]
    typer.echo(f"{len(groups)} graphs, {sum(map(len, groups))} variants")
    typer.echo(pd.DataFrame(rows, columns=header).to_string(index=False))


if __name__ == "__main__":
    typer.run(main)
