"""What is chosen on a busy machine, and what it loses against the best: `python -m baselines.busy --help`."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from baselines.models import NAMES
from baselines.peers.case import is_ours
from baselines.shared import comparison, csv_files, terminal
from baselines.shared.arguments import CsvFile, Models, choose
from baselines.shared.disturbance import CONDITIONS, Command
from torchrlopt import executor_table

CSV_COLUMNS = (
    "model", "condition", "executor", "threads", "run", "chosen", "loss",
    "before_ms", "after_ms", "spread", "ratios",
)  # fmt: skip

#: A choice that costs no more than this, as a share of the best time, counts as right.
TOLERANCE = 0.05


@dataclass(frozen=True)
class Answer:
    """One choice.

    Attributes:
        model: its name.
        condition: one of `CONDITIONS`.
        chosen: executor and searcher, or "original".
        ratios: what each attempt took, as a share of the original's time beside it.
        before_ms: of the original; None where nothing was measured.
        after_ms: of what won.
        spread: of their ratios.
    """

    model: str
    condition: str
    chosen: str
    ratios: dict[str, float]
    before_ms: float | None
    after_ms: float | None
    spread: float | None


def main(
    models: Models = "all",
    executor: Annotated[str, typer.Option(help="The option: 'default', 'auto' or one by name.")] = "default",
    conditions: Annotated[str, typer.Option(help="Of the machine; 'quiet' comes first, always.")] = "all",
    runs: Annotated[int, typer.Option(min=1, help="Choices for each model and condition.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each process.")] = 2,
    times: Annotated[
        Path | None, typer.Option(help="CSV file of baselines/compare.py: what each choice takes.")
    ] = None,
    csv: CsvFile = None,
) -> None:
    """Optimise models again and again, on the machine as it is, beside a neighbour, and under a quota.

    The neighbour takes a core for 0.3 s and sleeps for 0.3 s; the quota allows 1.5 cores. Every choice is
    made by a process of its own without a cache. What a choice is worth is its time on the quiet machine: by
    default the median of the quiet runs, relative to the best choice there; with --times what a comparison on
    the quiet machine says, which knows it better than a few choices. "Right" is what loses at most 5 %.

    Runs take turns: each model once under each condition, then once more. With --csv a run goes on where the
    file ends; give it more --runs, or other models, and only those that are missing are made.

    Example: python -m baselines.busy --models resnet18,moe_loop --executor auto --runs 3
    """
    chosen = choose(models, NAMES, "model")
    if executor not in executor_table.choices():
        raise typer.BadParameter(f"no executor {executor!r}; one of {', '.join(executor_table.choices())}")
    wanted = choose(conditions, list(CONDITIONS), "condition")
    wanted = ["quiet", *(name for name in wanted if name != "quiet")]
    console = terminal.console()
    console.print(f"{terminal.machine()}; {threads} threads", highlight=False)
    answers = saved(csv, executor, threads) if csv is not None and csv.exists() else []
    asked = {*chosen, *(each.model for each in answers)}
    known = None if times is None else times_of(times, sorted(asked), threads)
    made = Counter((each.model, each.condition) for each in answers)
    todo = [(run, condition) for run in range(runs) for condition in wanted]
    with terminal.progress(console) as progress:
        task = progress.add_task("", total=len(todo) * len(chosen))
        for run, condition in todo:
            with contextlib.ExitStack() as stack:
                try:
                    under = stack.enter_context(CONDITIONS[condition]())
                except OSError as error:
                    progress.console.print(f"{condition}: left out, {error}", style="yellow", highlight=False)
                    continue
                for model in chosen:
                    progress.update(task, description=f"{condition}: {model}")
                    if made[model, condition] <= run:
                        answers.append(ask(under, model, condition, executor, threads))
                        if csv is not None:
                            csv_files.write(csv, CSV_COLUMNS, rows(answers, executor, threads, known))
                    progress.advance(task)
    if csv is not None and answers:
        csv_files.write(csv, CSV_COLUMNS, rows(answers, executor, threads, known))
    console.print(render(answers, known))


def ask(under: Command, model: str, condition: str, executor: str, threads: int) -> Answer:
    """Make one choice in a process of its own.

    Raises:
        RuntimeError: the process failed.
    """
    command = under([sys.executable, "-m", "baselines.shared.choosing", model, executor, str(threads)])
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{model}, {condition}: {done.stderr.strip()[-500:]}")
    return Answer(model, condition, **json.loads(done.stdout.splitlines()[-1]))


_CHECKED = ("check", "")
"""What `weights` is where a choice is made; older files do not say it."""

Times = Mapping[str, Mapping[str, float]]
"""What each choice takes on the quiet machine by model, in any unit."""


def times_of(file: Path, models: Sequence[str], threads: int) -> Times:
    """What a comparison says, in milliseconds.

    Args:
        file: of `baselines/compare.py`; of ours what it has of executors by name with `weights="check"`
            counts, which is what choices are made with.
        models: of which it has to say something.
        threads: that it has to have used.

    Raises:
        typer.BadParameter: it has not timed eager PyTorch and one of ours on each model.
    """
    found: dict[str, dict[str, float]] = defaultdict(dict)
    named = executor_table.names()
    for line in csv_files.read(file, comparison.CSV_COLUMNS, comparison.LATER_COLUMNS):
        is_same = (line["threads"], line["batch"], line["dtype"]) == (str(threads), "1", "float32")
        if not line["median_ms"] or not is_same:
            continue
        if line["peer"] == "eager":
            found[line["model"]]["original"] = float(line["median_ms"])
        elif is_ours(line["peer"]) and line["weights"] in _CHECKED and line["executor"] in named:
            choice = f"{line['executor']}, {line['searcher']}"
            found[line["model"]][choice] = float(line["median_ms"])
    missing = [model for model in models if len(found[model]) < 2 or "original" not in found[model]]
    if missing:
        unknown = ", ".join(missing)
        raise typer.BadParameter(
            f"{file} does not say what choices take with {threads} threads for {unknown}"
        )
    return found


def of_quiet_runs(answers: Sequence[Answer]) -> Times:
    """The median of the quiet runs, as a share of the original's time beside it."""
    quiet: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in answers:
        if each.condition == "quiet":
            for name, ratio in each.ratios.items():
                quiet[each.model][name].append(ratio)
    return {
        model: {name: statistics.median(ratios) for name, ratios in of.items()} | {"original": 1.0}
        for model, of in quiet.items()
    }


def losses(answers: Sequence[Answer], known: Times | None = None) -> list[float | None]:
    """How much longer than the best choice each takes, on the quiet machine; None where that is not known.

    Args:
        answers: the choices.
        known: what choices take; None for what the quiet ones among these say.
    """
    known = of_quiet_runs(answers) if known is None else known
    found = []
    for each in answers:
        times = known.get(each.model, {})
        found.append(times[each.chosen] / min(times.values()) - 1 if each.chosen in times else None)
    return found


def rows(
    answers: Sequence[Answer], executor: str, threads: int, known: Times | None = None
) -> list[list[str]]:
    """The cells of the CSV file."""
    counts: Counter[tuple[str, str]] = Counter()
    table = []
    for each, loss in zip(answers, losses(answers, known), strict=True):
        counts[each.model, each.condition] += 1
        run = str(counts[each.model, each.condition])
        figures = (loss, each.before_ms, each.after_ms, each.spread)
        cells = ["" if figure is None else f"{figure:.4f}" for figure in figures]
        ratios = json.dumps({name: round(ratio, 4) for name, ratio in each.ratios.items()})
        table.append([each.model, each.condition, executor, str(threads), run, each.chosen, *cells, ratios])
    return table


def saved(csv: Path, executor: str, threads: int) -> list[Answer]:
    """What a file of `rows` holds.

    Raises:
        typer.BadParameter: it is another table, or of another executor or number of threads.
    """
    answers = []
    for row in csv_files.read(csv, CSV_COLUMNS):
        if (row["executor"], row["threads"]) != (executor, str(threads)):
            raise typer.BadParameter(
                f"{csv} is of executor {row['executor']} and {row['threads']} threads; name another file"
            )
        before_ms, after_ms, spread = (
            float(row[name]) if row[name] else None for name in ("before_ms", "after_ms", "spread")
        )
        ratios = json.loads(row["ratios"])
        answers.append(
            Answer(row["model"], row["condition"], row["chosen"], ratios, before_ms, after_ms, spread)
        )
    return answers


def render(answers: Sequence[Answer], known: Times | None = None) -> Table:
    """A row for each model and condition."""
    table = terminal.table(
        "Choices, and what they lose against the best on the quiet machine",
        ("model", "condition"),
        ("runs", "right", "worst loss", "gain told"),
    )
    table.add_column("chosen", overflow="fold")
    found = list(zip(answers, losses(answers, known), strict=True))
    for key in dict.fromkeys((each.model, each.condition) for each in answers):
        mine = [(each, loss) for each, loss in found if (each.model, each.condition) == key]
        told = [loss for _, loss in mine if loss is not None]
        right = sum(loss <= TOLERANCE for loss in told)
        gains = [each.before_ms / each.after_ms for each, _ in mine if each.before_ms and each.after_ms]
        counts = Counter(each.chosen for each, _ in mine)
        table.add_row(
            *key, str(len(mine)), str(right),
            "unknown" if len(told) < len(mine) else f"{max(told):.0%}",
            f"{min(gains):.2f}-{max(gains):.2f}x" if gains else "-",
            "; ".join(f"{count} x {name}" for name, count in counts.most_common()),
        )  # fmt: skip
    return table


if __name__ == "__main__":
    typer.run(main)
