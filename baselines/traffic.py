"""Choosing among executors by a program's calls, or before them: `python -m baselines.traffic --help`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

from baselines.models import EXTENDED, HELD_OUT, NAMES
from baselines.shared import terminal
from baselines.shared.arguments import CsvFile, choose, numbers
from baselines.shared.choosing import WAYS, Replay
from baselines.shared.recorded_calls import CONDITIONS
from baselines.shared.rounds import Contestant, started
from baselines.shared.tables import rich, write_whole

_MODELS = (
    "squeezenet1_1,mobilenet_v3,toy_bert,nasrnn,mobileone_s0,bert_tiny_128,shufflenet_v2,levit_128s,"
    "mobilevit_v2,gated_experts"
)
_COLUMNS = ("model", "batch", "condition", "at_ms", "candidate", "first_ms", "second_ms", "machine")
_NEAR = 0.05  # a choice this far behind the best is a good one
_BEGINS = 10  # moments of each recording from which it is replayed
_TIMEOUT_S = 600.0


def main(
    models: Annotated[str, typer.Option(help="Models of the suite, separated by commas.")] = _MODELS,
    batches: Annotated[str, typer.Option(help="Sizes of the batch, separated by commas.")] = "1,2,4",
    seconds: Annotated[float, typer.Option(min=0.1, help="Of each recording, at least.")] = 8.0,
    threads: Annotated[int, typer.Option(min=1, help="Of all candidates.")] = 2,
    calls: Annotated[int, typer.Option(min=10, help="Calls of a replay.")] = 1000,
    replay: Annotated[Path | None, typer.Option(help="Replay this file; record nothing.")] = None,
    csv: CsvFile = None,
) -> None:
    """Record calls of candidates for models on a quiet and on a busy machine, and replay ways to choose.

    The candidates are the model, `eager` with and without a plan, ONNX Runtime and OpenVINO, in one process.
    neighbour is another process that computes on one core or two for a second in the mean, and sleeps as
    long; quota stops the process for 40 of 100 ms.

    default is `eager` with its plan, whatever it costs. contest times all candidates before the first call,
    and stays with the best. bandit chooses while calls are made. Loss is the time of all calls,
    those of the contest included, beyond that of the best candidate over the same calls; choice is how much
    longer the candidate takes that was chosen at the end, in the mean over the recording.

    Example: python -m baselines.traffic --models toy_bert --batches 1 --csv traffic.csv.gz
    """
    console = terminal.console()
    if replay is None:
        terminal.announce(console, f"{threads} threads")
        chosen = choose(models, (*NAMES, *EXTENDED, *HELD_OUT), "model")
        frame = pd.DataFrame(columns=list(_COLUMNS))
        with terminal.progress(console) as progress:
            task = progress.add_task("", total=len(chosen))
            for model in chosen:
                progress.update(task, description=model)
                for batch in numbers(batches, int, "batch", 1, 4096):
                    made = pd.DataFrame(_recorded(model, batch, seconds, threads), columns=list(_COLUMNS))
                    frame = made if frame.empty else pd.concat([frame, made])
                    if csv is not None:
                        write_whole(
                            frame,
                            csv,
                            float_format="%.4g",
                            compression="gzip" if csv.suffix == ".gz" else None,
                        )
                progress.advance(task)
    else:
        frame = pd.read_csv(replay)
    if frame.empty:
        raise typer.Exit(1)
    console.print(rich("Loss and choice, means over recordings and moments", table(frame, calls)))


def _recorded(model: str, batch: int, seconds: float, threads: int) -> Iterator[tuple[Any, ...]]:
    arguments = {"model": model, "batch": batch, "threads": threads}
    contestant = Contestant(model, "baselines.shared.recorded_calls:RecordedCalls", arguments, threads)
    with (
        tempfile.TemporaryDirectory() as caches,
        started([contestant], Path(caches), _TIMEOUT_S) as (runner,),
    ):
        for condition in CONDITIONS:
            found = runner.ask("record", condition=condition, seconds=seconds)
            if runner.reason:
                terminal.console().print(f"{model}, {batch}: {runner.reason}", style="red", markup=False)
                return
            for name, times in found["times"].items():
                for at, (first, second) in zip(found["at"], times, strict=True):
                    yield (
                        model, batch, condition, at * 1e3, name, first, second, terminal.machine()
                    )  # fmt: skip


def table(frame: pd.DataFrame, calls: int) -> pd.DataFrame:
    """One row per condition and way to choose."""
    found = pd.DataFrame(_replayed(frame, calls))
    rows = found.groupby(["condition", "way"], sort=False).agg(
        recordings=("choice", "size"),
        loss=("loss", "mean"),
        worst_tenth=("loss", lambda values: values.quantile(0.9)),
        without_contest=("later_loss", "mean"),
        choice=("choice", "mean"),
        near=("choice", lambda values: (values < _NEAR).mean()),
    )
    shown = rows.drop(columns="recordings").map("{:.1%}".format)
    shown.columns = [
        "loss",
        "loss, worst tenth",
        "loss of later calls",
        "choice",
        f"choices within {_NEAR:.0%}",
    ]
    return shown.reset_index()


def _replayed(frame: pd.DataFrame, calls: int) -> Iterable[dict[str, Any]]:
    for (_, _, condition), own in frame.groupby(["model", "batch", "condition"], sort=False):
        names = list(dict.fromkeys(own.candidate))
        parts = [own[own.candidate == name] for name in names]
        at = parts[0].at_ms.to_numpy()
        times = np.stack([part[["first_ms", "second_ms"]].to_numpy() for part in parts], axis=1)
        means = times[:, :, 1].mean(axis=0)
        for number in range(_BEGINS):
            begin = number / _BEGINS * float(at[-1])
            fixed = []
            for which in range(len(names)):
                whole = Replay(at, times, begin)
                fixed.append(sum(whole.call(which) for _ in range(calls)))
            for name, way in WAYS.items():
                made = Replay(at, times, begin)
                last = way(made, calls, np.random.default_rng(number))
                yield {
                    "condition": condition,
                    "way": name,
                    "loss": made.spent / min(fixed) - 1,
                    "later_loss": sum(made.made[-calls:]) / min(fixed) - 1,
                    "choice": means[last] / means.min() - 1,
                }


if __name__ == "__main__":
    typer.run(main)
