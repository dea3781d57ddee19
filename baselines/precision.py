"""Error against time, next to peers in lower precision: `python -m baselines.precision --help`."""

from __future__ import annotations

from typing import Annotated

import pandas as pd
import torch
import typer

from baselines import compare
from baselines.models import EXTENDED, GROUPS, HELD_OUT, NAMES
from baselines.peers.case import OURS, PEERS, ROUNDED_PEERS, Case, is_ours
from baselines.peers.measured import Settings
from baselines.peers.registry import installed_peers
from baselines.shared import plots, terminal
from baselines.shared.arguments import CsvFile, PlotFile, Resume, Rounds, choose, one
from baselines.shared.tables import Results, of, rich
from baselines.trained import table as tasks
from torchrlopt import executor_table
from torchrlopt.judge.tolerances import TOLERANCES

ALL = (*PEERS, *ROUNDED_PEERS)
# Those of the same precision are alike up to rounding, of which no one has less than eager by merit.
_ROUNDING = TOLERANCES[torch.float32].max_factor


def main(
    models: Annotated[
        str,
        typer.Argument(
            help="Models, separated by commas, or a group: 'all' (the suite), 'extended', 'held_out', or "
            f"'trained', with trained weights: {', '.join(tasks.NAMES)}."
        ),
    ],
    peers: Annotated[
        str, typer.Option(help=f"Peers, separated by commas, or 'all' that are installed: {', '.join(ALL)}.")
    ] = "all",
    max_error: Annotated[
        str, typer.Option(help="torchrlopt's budgets, separated by commas: numbers, or 'bfloat16'.")
    ] = "1e-3,3e-3,1e-2,3e-2,bfloat16",
    executor: Annotated[str, typer.Option(help="torchrlopt's executor.")] = "default",
    rounds: Rounds = 7,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each peer.")] = 1,
    csv: CsvFile = None,
    resume: Resume = False,
    plot: PlotFile = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that one compilation may take.")] = 600.0,
) -> None:
    """Time float32 models in lower precision, and measure what that costs in accuracy.

    Peers run as in baselines.compare. Their errors are against float64 on the same inputs: root mean squares,
    relative to the output's, of the worst output. A result of torchrlopt beyond its budget counts as wrong.
    PyTorch's autocast and torchao's int8 on inductor have frozen weights; OpenVINO's int8 is calibrated on 16
    inputs, the timed one among them.

    Models with trained weights have a figure of their task, on inputs that were held out: those of scikit-learn's
    digits and of the standard library's docstrings are trained first, once for each user, the others come with
    packages and are left out without them.

    Example: python -m baselines.precision vit_s16,squeezenet1_1 --peers openvino_default,torchrlopt --csv out.csv
    """  # noqa: E501  # a command is one line
    console = terminal.console()
    groups_of_models = {**GROUPS, "trained": tasks.NAMES}
    known = (*NAMES, *EXTENDED, *HELD_OUT, *tasks.NAMES)
    wanted = list(groups_of_models.get(models) or choose(models, known, "model", NAMES))
    for model in [each for each in wanted if each in tasks.NAMES]:
        if todo := tasks.missing(model):
            console.print(f"{model} is left out: {todo}", style="yellow", highlight=False)
            wanted.remove(model)
        else:
            tasks.trained(model)  # trains it here, if it is not yet: the peers only read it
    budgets = ["", *(each.strip() for each in max_error.split(","))]
    if not all(each in ("", "bfloat16") or _is_positive(each) for each in budgets):
        raise typer.BadParameter(f"expected positive numbers or 'bfloat16', got {max_error!r}")
    own = one(executor, executor_table.choices(), "executor")
    chosen = dict.fromkeys([PEERS[0], *choose(peers, ALL, "peer", installed_peers(ALL))])
    groups = [
        [
            Case(model, peer, 1, "float32", threads, **options)
            for peer in chosen
            for options in ([_options(own, budget) for budget in budgets] if peer == OURS else [{}])
        ]
        for model in wanted
    ]
    terminal.announce(console, f"{threads} threads")
    results = Results("precision", csv, resume)
    groups = compare.missing(groups, results)
    reasons = compare.measure(groups, Settings(rounds, timeout_s=timeout), results, console)
    if not of(results.frame, metric="rms error", peer=PEERS[0]).empty:
        found = points(results.frame)
        for model, each in found.groupby("model", sort=False):
            console.print(rich(str(model), table(each)))
        if found.peer.map(is_ours).any():
            console.print(rich(f"{OURS} at no more than the peer's error", summary(found)))
        if plot is not None:
            plots.frontiers(found.assign(joined=found.peer.map(is_ours)), plot)
    for line in reasons:
        console.print(line, style="red", highlight=False, markup=False, soft_wrap=True)
    if of(results.frame, metric="call").empty:
        raise typer.Exit(1)


def _is_positive(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False


def _options(executor: str, max_error: str) -> dict[str, str]:
    return {"executor": executor, "weights": "check", "searcher": "agent", "max_error": max_error}


def points(frame: pd.DataFrame) -> pd.DataFrame:
    """Time and error of each peer on each model.

    Args:
        frame: rows of the long table.

    Returns:
        The columns `model`, `peer`, `error`, `figure` with its `unit`, and milliseconds of a call: `ms`, the
        median of the rounds, `low` and `high`, their quartiles, `least`, of all calls, and `processor`, the
        median of the rounds on the processor's clock, on which neighbours weigh less.
    """

    def values(metric: str, column: str = "value") -> pd.core.groupby.SeriesGroupBy:
        return of(frame, metric=metric).groupby(["model", "peer"], sort=False)[column]

    calls = values("call")
    columns = {
        "error": values("rms error").first(),
        "figure": values("figure").first(),
        "unit": values("figure", "unit").first(),
        "ms": calls.median(),
        "low": calls.quantile(0.25),
        "high": calls.quantile(0.75),
        "least": values("call, minimum").min(),
        "processor": values("call, processor").median(),
    }
    found = pd.DataFrame({name: column.reindex(columns["ms"].index) for name, column in columns.items()})
    return found[found.error.notna()].reset_index()


def table(own: pd.DataFrame) -> pd.DataFrame:
    """One row per peer, as texts; for one model."""
    base = own.ms[own.peer == PEERS[0]].iloc[0]
    shown = pd.DataFrame({"peer": own.peer})
    quartiles = " (" + own.low.map("{:.3g}".format) + " to " + own.high.map("{:.3g}".format) + ")"
    shown["ms"] = own.ms.map("{:.3g}".format) + quartiles
    shown["least"] = own.least.map("{:.3g}".format)
    shown["processor"] = own.processor.map("{:.3g}".format)
    shown[f"over {PEERS[0]}"] = (base / own.ms).map("{:.2f}x".format)
    shown["error"] = own.error.map("{:.1e}".format)
    if own.figure.notna().any():
        shown[own.unit.dropna().iloc[0]] = own.figure.map("{:.4g}".format)
    return shown


def at_no_more_error(found: pd.DataFrame, time: str = "ms") -> pd.DataFrame:
    """Speed-up of torchrlopt over each other peer (columns) by model, at no more than the peer's error.

    It is that of the largest measured error that is not larger: the choice must not see times, or it would
    prefer the luckiest of several equals. Rounding in float32 is no error.

    Args:
        found: see `points`.
        time: "ms", "least" or "processor".
    """
    ratios: dict[str, dict[str, float]] = {}
    for model, each in found.groupby("model", sort=False):
        floor = _ROUNDING * each.error[each.peer == PEERS[0]].max()
        ours = each[each.peer.map(is_ours)]
        for peer in each[~each.peer.map(is_ours)].itertuples():
            equal = ours[ours.error <= max(peer.error, floor)]
            if len(equal):
                ratio = getattr(peer, time) / equal.sort_values("error", kind="stable")[time].iloc[-1]
                ratios.setdefault(str(peer.peer), {})[str(model)] = ratio
    return pd.DataFrame(ratios)


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """One row per peer, as texts: `at_no_more_error` over the models."""
    others = {time: at_no_more_error(found, time) for time in ("least", "processor")}
    rows = [
        {
            "peer": peer,
            "models": f"{own.count()} of {found.model.nunique()}",
            "geomean": f"{compare.geometric_mean(own):.2f}x",
            **{f"by {time}": f"{compare.geometric_mean(each[peer]):.2f}x" for time, each in others.items()},
            "range": f"{own.min():.2f} to {own.max():.2f}",
            "faster": f"{(own > 1).sum()} of {own.count()}",
        }
        for peer, own in at_no_more_error(found).items()
    ]
    return pd.DataFrame(rows)


if __name__ == "__main__":
    typer.run(main)
