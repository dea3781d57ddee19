"""What the first call costs, in time and in memory: `python -m baselines.first_call --help`.

Each first call is one of a process of its own, so that nothing is imported, compiled or cached before it but
the model. torch.compile's backend "aot_eager" runs beside ours: it traces as ours does, and compiles nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from baselines.models import NAMES
from baselines.shared import csv_files, terminal
from baselines.shared.arguments import CsvFile, Models, choose
from baselines.shared.cold_call import OPTIONS

BASE, STORED = "aot_eager", "stored"
#: How the model is called for the first time.
WAYS = ("eager", BASE, *OPTIONS)
_USUAL = ("eager", BASE, "default", STORED)
CSV_COLUMNS = (
    "model", "way", "threads", "batch", "run",
    "wall_s", "cpu_s", "peak_mb", "calls_peak_mb", "kept", "phases_ms",
)  # fmt: skip


@dataclass(frozen=True)
class First:
    """One first call.

    Attributes:
        model: its name.
        way: one of `WAYS`.
        threads: of PyTorch.
        batch: of the inputs.
        run: from 1.
        wall_s: from the import of torchrlopt, or of Dynamo, to the end of the call, in seconds.
        cpu_s: the processor time of the process meanwhile, all threads, in seconds.
        peak_mb: most memory that was resident meanwhile, in MB of 10^6 bytes.
        calls_peak_mb: the same in the calls after it; None where the system does not say.
        kept: the executor whose graph was kept, or "original"; empty for other ways than ours.
        phases_ms: of our report.
    """

    model: str
    way: str
    threads: int
    batch: int
    run: int
    wall_s: float
    cpu_s: float
    peak_mb: float
    calls_peak_mb: float | None
    kept: str
    phases_ms: dict[str, float] = field(default_factory=dict)

    def cells(self) -> tuple[object, ...]:
        """In the order of `CSV_COLUMNS`."""
        calls = "" if self.calls_peak_mb is None else f"{self.calls_peak_mb:.1f}"
        phases = json.dumps({name: round(ms) for name, ms in self.phases_ms.items()})
        figures = (f"{self.wall_s:.3f}", f"{self.cpu_s:.3f}", f"{self.peak_mb:.1f}", calls)
        return (self.model, self.way, self.threads, self.batch, self.run, *figures, self.kept, phases)


def read_csv(path: Path) -> list[First]:
    """The first calls of a file that `main` wrote."""
    found = []
    for row in csv_files.read(path, CSV_COLUMNS):
        calls = float(row["calls_peak_mb"]) if row["calls_peak_mb"] else None
        numbers = (int(row[name]) for name in ("threads", "batch", "run"))
        figures = (float(row[name]) for name in ("wall_s", "cpu_s", "peak_mb"))
        phases = json.loads(row["phases_ms"])
        found.append(First(row["model"], row["way"], *numbers, *figures, calls, row["kept"], phases))
    return found


def main(
    models: Models = "resnet50,bert_base",
    ways: Annotated[
        str, typer.Option(help=f"How it is called, separated by commas: {', '.join(WAYS)}.")
    ] = ",".join(_USUAL),
    runs: Annotated[int, typer.Option(min=1, help="First calls of each way, in turn.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each process.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 1,
    csv: CsvFile = None,
) -> None:
    """Measure first calls, each in a process of its own, all ways in turn.

    eager is the model as it is, aot_eager torch.compile's backend of that name; all others are `optimise`.
    default begins with an empty store of plans, and stored with what a process before it has left there.
    frozen, released and max-autotune begin with an empty one, too. "Beyond" is what a first call takes beyond
    that of aot_eager in the same round. On a machine that does other work, look at the processor time.

    Example: python -m baselines.first_call --models resnet50,bert_base --runs 5 --csv first.csv
    """
    named, chosen = choose(models, NAMES, "model"), choose(ways, WAYS, "way")
    console = terminal.console()
    console.print(f"{terminal.machine()}; {threads} threads, batch {batch}", highlight=False)
    found: list[First] = []
    with terminal.progress(console) as progress:
        task = progress.add_task("", total=len(named) * runs * len(chosen))
        for model in named:
            with tempfile.TemporaryDirectory() as kept:
                for run in range(1, runs + 1):
                    for way in chosen:
                        progress.update(task, description=f"{model}: {way}")
                        found.append(measure(model, way, threads, batch, run, Path(kept)))
                        progress.advance(task)
                        if csv is not None:
                            csv_files.write(csv, CSV_COLUMNS, [each.cells() for each in found])
    console.print(render(found))
    phases = render_phases(found)
    if phases.row_count:
        console.print(phases)


def measure(model: str, way: str, threads: int, batch: int, run: int, kept: Path) -> First:
    """One first call.

    Args:
        model: one of `NAMES`.
        way: one of `WAYS`.
        threads: of PyTorch.
        batch: of the inputs.
        run: its number.
        kept: the store of plans of the way "stored"; it is filled where it is empty.

    Raises:
        RuntimeError: the process failed.
    """
    if way != STORED:
        with tempfile.TemporaryDirectory() as fresh:
            return First(model, way, threads, batch, run, **_ask(model, way, threads, batch, Path(fresh)))
    if not any(kept.iterdir()):
        _ask(model, way, threads, batch, kept)
    return First(model, way, threads, batch, run, **_ask(model, way, threads, batch, kept))


def _ask(model: str, way: str, threads: int, batch: int, store: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "baselines.shared.cold_call", model, way, str(threads), str(batch)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TORCHRLOPT_CACHE_DIR": str(store)}
    # An installed package has its bytecode beside it: what the first process compiles is kept.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{model}, {way}: {done.stderr.strip()[-500:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def beyond(found: Sequence[First], model: str, way: str) -> list[tuple[float, float]]:
    """Wall and processor seconds of each first call beyond those of aot_eager in the same round."""
    base = {each.run: each for each in found if (each.model, each.way) == (model, BASE)}
    mine = [each for each in found if (each.model, each.way) == (model, way) and each.run in base]
    return [(each.wall_s - base[each.run].wall_s, each.cpu_s - base[each.run].cpu_s) for each in mine]


def render(found: Sequence[First]) -> Table:
    """A row for each model and way: medians, with the least in brackets."""
    table = terminal.table(
        "First calls, medians (and the least)",
        ("model", "way", "kept"),
        ("wall s", "CPU s", "wall beyond", "CPU beyond", "peak MB", "peak MB of later calls"),
    )
    for model, way in dict.fromkeys((each.model, each.way) for each in found):
        mine = [each for each in found if (each.model, each.way) == (model, way)]
        more = beyond(found, model, way) if way in OPTIONS else []
        calls = [each.calls_peak_mb for each in mine if each.calls_peak_mb is not None]
        table.add_row(
            model,
            way,
            ", ".join(dict.fromkeys(each.kept for each in mine)),
            _of([each.wall_s for each in mine]),
            _of([each.cpu_s for each in mine]),
            _of([wall for wall, _ in more]),
            _of([cpu for _, cpu in more]),
            _of([each.peak_mb for each in mine], 0),
            _of(calls, 0),
        )
    return table


def render_phases(found: Sequence[First]) -> Table:
    """The median of each phase of our report, in milliseconds of wall time."""
    names = list(dict.fromkeys(name for each in found for name in each.phases_ms))
    table = terminal.table("Phases of the report, medians, ms", ("model", "way"), names)
    for model, way in dict.fromkeys((each.model, each.way) for each in found if each.phases_ms):
        mine = [each.phases_ms for each in found if (each.model, each.way) == (model, way)]
        table.add_row(
            model, way, *(f"{statistics.median(each.get(name, 0.0) for each in mine):.0f}" for name in names)
        )
    return table


def _of(values: Sequence[float], digits: int = 2) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f})"


if __name__ == "__main__":
    typer.run(main)
