"""Many architectures through torch.compile with default options: `python -m baselines.architectures`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Any

import pandas as pd
import typer

from baselines.collection.processes import prepare, run_apart
from baselines.collection.run import MEANING, Outcome
from baselines.collection.table import ARCHITECTURES, CASES
from baselines.shared import terminal
from baselines.shared.arguments import CsvFile, choose
from baselines.shared.tables import rich, write_whole
from torchrlopt import executor_table

CSV_COLUMNS = (
    "case", "family", "status", "graphs", "rewritten", "nodes_before", "nodes_after", "speedup",
    "first_call_s", "sizes", "reasons", "hidden", "detail",
)  # fmt: skip


def main(
    names: Annotated[
        str,
        typer.Argument(
            help="Cases, separated by commas, or 'all'. An architecture's name stands for plain calls; "
            "NAME/dynamic and NAME/static for generate() with that cache."
        ),
    ] = "all",
    executor: Annotated[str, typer.Option(help="The option: 'default', 'auto' or one by name.")] = "default",
    on_error: Annotated[
        str, typer.Option(help="'fallback', as users have it, or 'raise', which shows our own bugs.")
    ] = "fallback",
    measure: Annotated[
        bool,
        typer.Option(help="Time each rewritten graph; without it all are used that are predicted faster."),
    ] = True,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each process.")] = 1,
    csv: CsvFile = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that one case may take.")] = 300.0,
) -> None:
    """Compile small models of many architectures with the default options and compare them with eager ones.

    All weights are random, including those of norms. Each model is called four times: twice with different
    values, then with another batch size, then with longer texts or larger images if it accepts them; or it
    generates as often. All outputs are compared, including caches. Each case runs in a separate process.
    Status "equal" is a success; "dynamo" is a failure that PyTorch's own backend aot_eager shows as well. An
    internal error hidden by the fallback (see torchrlopt/compile/fallback.py) is a failure, too.

    Example: python -m baselines.architectures bert,llama/static --csv out.csv
    """
    chosen = choose(names, list(CASES), "case")
    if executor not in executor_table.choices():
        raise typer.BadParameter(f"no executor {executor!r}; one of {', '.join(executor_table.choices())}")
    options: dict[str, Any] = {"cache": False, "executor": executor, "on_error": on_error, "measure": measure}
    console = terminal.console()
    console.print(f"{terminal.machine()}; {threads} threads", highlight=False)
    prepare(threads)
    outcomes: list[Outcome] = []
    with terminal.progress(console) as progress:
        task = progress.add_task("", total=len(chosen))
        for label in chosen:
            progress.update(task, description=label)
            outcome = run_apart(label, options, timeout)
            outcomes.append(outcome)
            for what, text in ((outcome.status, outcome.detail), ("hidden by the fallback", outcome.hidden)):
                if text:
                    line = f"{label}: {what}: {text}"
                    progress.console.print(line, style="red", highlight=False, markup=False, soft_wrap=True)
            if csv is not None:
                write_csv(outcomes, csv)
            progress.advance(task)
    console.print(rich("Compiled and compared with eager PyTorch", table(outcomes)))
    for line in summary(outcomes):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if any(outcome.status not in ("equal", "dynamo") or outcome.hidden for outcome in outcomes):
        raise typer.Exit(1)


def write_csv(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write all outcomes, with `CSV_COLUMNS`."""
    frame = pd.DataFrame(map(asdict, outcomes), columns=list(CSV_COLUMNS))
    write_whole(frame, path, float_format="%.3f")


def table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row per case, as texts."""
    own = pd.DataFrame(map(asdict, outcomes)).astype({"speedup": float, "first_call_s": float})
    shown = own[["case", "status", "graphs", "rewritten"]].astype(str)
    shown["operators"] = own.nodes_before.astype(str) + " -> " + own.nodes_after.astype(str)
    shown["speed-up"] = own.speedup.map("{:.2f}x".format, na_action="ignore").fillna("-")
    shown["first call s"] = own.first_call_s.map("{:.1f}".format, na_action="ignore").fillna("-")
    shown["why original"] = own.reasons.str.replace(r"(\d+) x ([^;]+)", r"\2 (\1)", regex=True)
    return shown


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    """Summary lines printed below the table."""
    known = {case.label: case.name for case in CASES.values()}
    names = {known[each.case] for each in outcomes}
    counts = Counter(each.status for each in outcomes)
    graphs, rewritten = sum(each.graphs for each in outcomes), sum(each.rewritten for each in outcomes)
    lines = [f"{len(outcomes)} cases of {len(names)} of {len(ARCHITECTURES)} architectures:"]
    lines += [
        f"  {counts[status]} {status}: {meaning}" for status, meaning in MEANING.items() if counts[status]
    ]
    lines.append(f"{rewritten} of {graphs} graphs run rewritten")
    speedups = [each.speedup for each in outcomes if each.speedup is not None]
    if speedups:
        mean, best = geometric_mean(speedups), max(speedups)
        lines.append(f"measured speed-up of a case: geometric mean {mean:.2f}x, at most {best:.2f}x")
    hiding = sum(bool(each.hidden) for each in outcomes)
    lines.append(f"{hiding} cases in which the fallback has hidden an internal error")
    reasons: Counter[str] = Counter()
    for each in outcomes:
        for part in each.reasons.split("; ") if each.reasons else ():
            count, _, reason = part.partition(" x ")
            reasons[reason] += int(count)
    lines += [f"  {count} kept: {reason}" for reason, count in reasons.most_common()]
    return lines


if __name__ == "__main__":
    typer.run(main)
