"""ONNX files next to other optimisers of files: `python -m baselines.files --help`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import pandas as pd
import typer

from baselines.model_files.sources import FILES, drawn, made
from baselines.model_files.tools import ORIGINAL, OURS, TOOLS, installed
from baselines.shared import terminal
from baselines.shared.arguments import CsvFile, Resume, choose
from baselines.shared.rounds import Contestant, alternated, started
from baselines.shared.tables import Results, of, rich
from torchrlopt.executors.onnx_runtimes.file_calls import RUNTIMES

_NOISE = 0.02  # of the least of many calls on an idle machine, see docs/measuring.md


def main(
    names: Annotated[
        str, typer.Argument(help="Files of the built-in list, separated by commas, 'all', or a folder.")
    ] = "all",
    tools: Annotated[
        str, typer.Option(help=f"Separated by commas, or 'all' that are installed: {', '.join(TOOLS)}.")
    ] = "all",
    runtimes: Annotated[str, typer.Option(help=f"What runs the files: {', '.join(RUNTIMES)}.")] = "all",
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of timing; 0 only counts and compares.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.0, help="Of each file in each round.")] = 0.2,
    csv: CsvFile = None,
    resume: Resume = False,
    folder: Annotated[
        Path | None, typer.Option(help="Where files of the built-in list are written, and kept.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that one tool may take.")] = 900.0,
) -> None:
    """Compare what optimisers make of ONNX files: nodes, bytes, and time in ONNX Runtime and OpenVINO.

    Each file of each tool runs in its own process with one thread; they alternate round by round. A time is
    the least of all calls, on the processor's clock. torchrlopt rewrites a file once for each runtime. The
    error is the largest difference from the original's outputs, in units of their root mean square.

    In a folder, inputs of NAME.onnx are read from NAME.npz if it is there; otherwise they are random, first
    sizes that are free are 1, others 64. Files of the built-in list whose packages are not installed are left
    out: magika, nudenet, rapidocr-onnxruntime, rapidocr, ddddocr, silero-vad, faster-whisper, basic-pitch,
    piper-tts, onnx-asr. Most files take less than a minute.

    Example: python -m baselines.files light_squeezenet,resnet18_script17 --csv out.csv
    """
    console = terminal.console()
    chosen = choose(tools, list(TOOLS), "tool", installed())
    where = choose(runtimes, list(RUNTIMES), "runtime")
    terminal.announce(console, "1 thread")
    results = Results("files", csv, resume, batch=1, threads=1)
    done = set(results.frame.model)
    with tempfile.TemporaryDirectory() as scratch, terminal.progress(console) as progress:
        own = folder or Path(scratch) / "files"
        own.mkdir(exist_ok=True)
        paths = list(_paths(names, own, done, console.print))
        task = progress.add_task("", total=len(paths))
        for path in paths:
            progress.update(task, description=path.stem)
            for runtime in where:
                _compare(path, runtime, chosen, rounds, seconds, timeout, Path(scratch), results)
            results.save()
            progress.advance(task)
    frame = results.frame
    console.print(rich("Nodes, and speed-up over the original", table(frame)))
    for line in summary(frame):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for row in of(frame, metric="failure").itertuples():
        line = f"{row.model}, {row.peer}, {row.setting}: {row.note}"
        console.print(line, style="red", highlight=False, markup=False, soft_wrap=True)


def _paths(names: str, folder: Path, done: set[str], say: Any) -> Iterator[Path]:
    """The files that are not done, with inputs."""
    if "," not in names and Path(names).is_dir():  # a long list is no valid path
        for path in sorted(Path(names).glob("*.onnx")):
            if path.stem not in done:
                if not path.with_suffix(".npz").is_file():
                    np.savez(path.with_suffix(".npz"), **drawn(onnx.load(path), {}))
                yield path
        return
    for name in choose(names, list(FILES), "file"):
        if name in done:
            continue
        try:
            yield made(name, folder)
        except ModuleNotFoundError as error:
            say(f"{name} is left out: it comes with the package {error}", style="yellow")


def _compare(
    path: Path,
    runtime: str,
    tools: Sequence[str],
    rounds: int,
    seconds: float,
    timeout_s: float,
    scratch: Path,
    results: Results,
) -> None:
    folder = scratch / "made"
    contestants = [
        Contestant(
            tool,
            "baselines.model_files.tools:FileCase",
            {
                "tool": tool,
                "source": str(path.absolute()),
                "target": str(path.absolute() if tool == ORIGINAL else folder / tool / path.name),
                "runtime": runtime,
            },
        )
        for tool in (ORIGINAL, *tools)
    ]
    common = {"setting": runtime}
    with started(contestants, scratch / "caches", timeout_s) as runners:
        answers: dict[str, list[np.ndarray]] = {}
        for runner in runners:
            tool = runner.contestant.name
            found = runner.ask("make")
            if found is not None:
                note = found["note"]
                results.add(path.stem, tool, "nodes", found["nodes"], **common, note=note)
                results.add(path.stem, tool, "bytes", found["bytes"], "B", **common)
                results.add(path.stem, tool, "made in", found["seconds"], "s", **common)
            outputs = runner.ask("open")
            if outputs is not None:
                with np.load(outputs) as arrays:
                    answers[tool] = list(arrays.values())
                if ORIGINAL in answers:
                    results.add(path.stem, tool, "error", _error(answers[ORIGINAL], answers[tool]), **common)
        for number, runner, (wall, processor) in alternated(runners, rounds, "time", seconds=seconds):
            tool = runner.contestant.name
            results.add(path.stem, tool, "call, minimum", wall, "ms", round=number, **common)
            results.add(path.stem, tool, "call, processor", processor, "ms", round=number, **common)
        for runner in runners:
            if runner.reason:
                results.add(path.stem, runner.contestant.name, "failure", None, note=runner.reason, **common)
    shutil.rmtree(folder, ignore_errors=True)


def _error(expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    """The largest difference, in units of the root mean square of each output."""
    worst = 0.0
    if len(expected) != len(found):
        return float("inf")
    for old, new in zip(expected, found, strict=True):
        if old.shape != new.shape:
            return float("inf")
        if old.dtype.kind in "fiub" and old.size:
            wide, other = old.astype(np.float64), new.astype(np.float64)
            scale = float(np.sqrt(np.mean(np.square(wide)))) or 1.0
            differs = ~((wide == other) | (np.isnan(wide) & np.isnan(other)))
            worst = max(worst, float(np.max(np.abs(wide - other)[differs], initial=0.0)) / scale)
    return worst


def points(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per file, runtime and tool: nodes, bytes, error, and the least milliseconds of a call.

    Args:
        frame: rows of the long table.
    """
    keys = ["model", "setting", "peer"]

    def least(metric: str) -> pd.Series[float]:
        return of(frame, metric=metric).groupby(keys, sort=False).value.min()

    columns = {"nodes": "nodes", "bytes": "bytes", "error": "error", "ms": "call, processor"}
    return pd.DataFrame({name: least(metric) for name, metric in columns.items()}).reset_index()


def _wide(frame: pd.DataFrame, runtime: str, column: str) -> pd.DataFrame:
    """A column of `points`, files by tools."""
    found = points(frame)
    found = found[found.setting == runtime]
    order = found.model.drop_duplicates()
    return found.pivot(index="model", columns="peer", values=column).reindex(order)


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per file and runtime, as texts."""
    rows = []
    for runtime in frame.setting.unique():
        nodes, ms = _wide(frame, runtime, "nodes"), _wide(frame, runtime, "ms")
        for model in nodes.index:
            row = {"file": model, "runtime": runtime}
            for tool in [each for each in (ORIGINAL, *TOOLS) if each in nodes]:
                count = nodes[tool][model]
                row[tool] = "-" if np.isnan(count) else f"{count:.0f}"
                if tool != ORIGINAL and tool in ms:
                    ratio = ms[ORIGINAL][model] / ms[tool][model]
                    row[tool] += "" if np.isnan(ratio) else f"  {ratio:.2f}x"
            rows.append(row)
    return pd.DataFrame(rows).fillna("-")


def summary(frame: pd.DataFrame) -> list[str]:
    """Lines below the table: torchrlopt next to each other tool, in each runtime."""
    lines = []
    for runtime in frame.setting.unique():
        nodes, ms = _wide(frame, runtime, "nodes"), _wide(frame, runtime, "ms")
        if OURS not in nodes or OURS not in ms:
            continue
        for tool in [each for each in (ORIGINAL, *TOOLS) if each in ms and each != OURS]:
            ratio = (ms[tool] / ms[OURS]).dropna()
            more = list(nodes.index[nodes[OURS] > nodes[tool]])
            slower = list(ratio.index[ratio < 1 - _NOISE])
            mean = float(np.exp(np.log(ratio).mean())) if len(ratio) else float("nan")
            lines.append(
                f"{runtime}, {OURS} over {tool}: {mean:.3f}x (geometric mean of {len(ratio)} files), "
                f"slower by more than {_NOISE:.0%}: {', '.join(slower) or 'none'}; "
                f"more nodes: {', '.join(more) or 'none'}"
            )
    return lines


if __name__ == "__main__":
    typer.run(main)
