"""What a comparison shows and keeps: a table, a CSV file and a plot of its rows.

`python -m baselines.table FILE.csv` prints the table of a CSV file in Markdown.
"""

from __future__ import annotations

import csv
import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from rich import box
from rich.table import Table

from baselines.measure import Row
from baselines.peers import OURS, PEERS, Case

#: Columns of the CSV file, in order.
CSV_COLUMNS: tuple[str, ...] = (
    "model", "peer", "executor", "searcher", "batch", "dtype", "threads",
    "median_ms", "q1_ms", "q3_ms", "peak_mb", "first_call_s",
)  # fmt: skip

_CASE_COLUMNS = frozenset({"model", "peer", "executor", "searcher", "batch", "dtype", "threads"})


def machine() -> str:
    """Processor and versions, on one line."""
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
        processor = names[0] if names else processor
    packages = [name for name in ("torch", "onnxruntime", "torchrlopt") if _has(name)]
    versions = [
        f"python {platform.python_version()}",
        *(f"{name} {metadata.version(name)}" for name in packages),
    ]
    return f"{processor}, {os.cpu_count()} cores, {', '.join(versions)}"


def _has(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive values.

    Raises:
        ValueError: There are none, or one is not positive.
    """
    if not values or min(values) <= 0:
        raise ValueError(f"a geometric mean needs positive values, got {list(values)}")
    return math.exp(sum(math.log(value) for value in values) / len(values))


def ratios_by_peer(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Speed-ups over eager of each peer's good rows; in the order of `PEERS`, peers of a GPU after them."""
    return {peer: [*own.values()] for peer, own in _ratios_by_model(rows).items()}


def _ratios_by_model(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """The same, by model."""
    ratios: dict[str, dict[str, float]] = {peer: {} for peer in PEERS}
    for row in rows:
        if row.ratio is not None and not row.reason:
            ratios.setdefault(row.case.label, {})[row.case.model] = row.ratio
    return {peer: own for peer, own in ratios.items() if own}


def _format(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def _spread(q1: float | None, q3: float | None) -> str:
    return "-" if q1 is None or q3 is None else f"{q1:.2f} to {q3:.2f}"


def _speed(row: Row) -> str:
    if row.median_ms is None:
        return "failed"
    return "wrong" if row.reason else _times(row.ratio)


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def render(rows: Sequence[Row]) -> Table:
    """The table of a comparison, with a geometric mean of the speed-ups of each peer.

    Args:
        rows: Rows grouped by model. Why one has failed is not in the table: see `failures`.
    """
    title = f"Speed-up over {PEERS[0]}: median and quartiles of the rounds' ratios"
    table = Table(title=title, box=box.SIMPLE)
    table.add_column("model", no_wrap=True)
    table.add_column("peer", no_wrap=True)
    measures = (
        "median ms", "quartiles", "speed-up", "quartiles", "peak MB", "first call s", "max error",
        "over best peer", "quartiles", "kept",
    )  # fmt: skip
    for heading in measures:
        table.add_column(heading, justify="right", no_wrap=True)
    for row, next_row in zip(rows, [*rows[1:], None], strict=True):
        table.add_row(
            row.case.model, row.case.label, _format(row.median_ms, ".2f"), _spread(row.q1_ms, row.q3_ms),
            _speed(row), _spread(row.ratio_q1, row.ratio_q3), _format(row.peak_mb, ".0f"),
            _format(row.first_call_s, ".1f"), _format(row.max_error, ".1e"),
            _times(row.over_best), _spread(row.over_best_q1, row.over_best_q3), row.kept,
            end_section=next_row is None or next_row.case.model != row.case.model,
            style="red" if row.reason else "",
        )  # fmt: skip
    num_models = len({row.case.model for row in rows})
    by_model = _ratios_by_model(rows)
    for peer, ratios in ratios_by_peer(rows).items():
        name = "geomean" if len(ratios) == num_models else f"geomean, {len(ratios)} of {num_models}"
        over_best = [row.over_best for row in rows if row.case.label == peer and row.over_best is not None]
        last = f"{geometric_mean(over_best):.2f}x" if over_best else ""
        table.add_row(name, peer, "", "", f"{geometric_mean(ratios):.2f}x", "", "", "", "", last)
    for name, gains in gains_of_plans(by_model).items():
        spread = f"{min(gains.values()):.2f} to {max(gains.values()):.2f}"
        table.add_row("geomean, range", name, "", "", f"{geometric_mean([*gains.values()]):.2f}x", spread)
    return table


def gains_of_plans(ratios: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """What the plan brings in each executor that has run with and without one.

    Args:
        ratios: Speed-ups over eager PyTorch by peer's label and model.

    Returns:
        Speed-up with a plan over that without, by name of the comparison and model.
    """
    gains: dict[str, dict[str, float]] = {}
    for label, own in ratios.items():
        without = ratios.get(f"{label}/none", {})
        shared = {model: ratio / without[model] for model, ratio in own.items() if model in without}
        if shared:
            gains[f"{label} / without a plan"] = shared
    return gains


def failures(rows: Sequence[Row]) -> list[str]:
    """One line for each row that does not count: what failed and why."""
    return [f"{row.case.model}, {row.case.label}: {row.reason}" for row in rows if row.reason]


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Writes the rows with `CSV_COLUMNS`; a peer that failed keeps its row, with empty numbers.

    The file is complete or absent at any moment: it is written aside and moved into place.
    """
    aside = path.with_name(path.name + ".part")
    with aside.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(CSV_COLUMNS)
        for row in rows:
            writer.writerow([_csv_value(row, column) for column in CSV_COLUMNS])
    aside.replace(path)


def _csv_value(row: Row, column: str) -> object:
    if column in _CASE_COLUMNS:
        return getattr(row.case, column)
    # A wrong result's time is no result.
    value: float | None = None if row.reason else getattr(row, column)
    return "" if value is None else f"{value:.4f}"


def markdown(path: Path) -> str:
    """The table of a CSV file that `write_csv` wrote, for a page of text: a row for each model.

    Speed-ups are ratios of medians. For torchrlopt also its speed-up over the best of the other peers, with
    memory and first call beside those of eager PyTorch and inductor; or, where it has run with and without a
    plan, what the plan brings.
    """
    with path.open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["median_ms"]]
    cases = [(_label(line), line["model"], float(line["median_ms"]), line) for line in lines]
    base = {model: ms for label, model, ms, _ in cases if label == PEERS[0]}
    best = {m: min(ms for label, model, ms, _ in cases if model == m and not _is_ours(label)) for m in base}
    ratios: dict[str, dict[str, float]] = {}
    for label, model, ms, _ in cases:
        ratios.setdefault(label, {})[model] = base[model] / ms
    gains = gains_of_plans(ratios)
    # Memory and first calls of so many variants would fill the page.
    labels = [] if gains else [label for label in ratios if label in PEERS[:2] or _is_ours(label)]
    for label in filter(_is_ours, labels):
        over = {model: best[model] / ms for own, model, ms, _ in cases if own == label}
        ratios[f"{label} / best peer"] = over
    ratios |= gains
    columns = [label for label in ratios if label != PEERS[0]]
    of = {(label, model): line for label, model, _, line in cases}
    rows = [["model", f"{PEERS[0]} ms", *columns, *(["peak MB", "first call s"] if labels else [])]]
    rows.append(["---"] * len(rows[0]))
    for model, ms in base.items():
        cells = [f"{ratios[column][model]:.2f}x" if model in ratios[column] else "-" for column in columns]
        own = [of.get((label, model)) for label in labels]
        if labels:
            for name, spec in (("peak_mb", ".0f"), ("first_call_s", ".1f")):
                each = ("-" if line is None else format(float(line[name]), spec) for line in own)
                cells.append(" / ".join(each))
        rows.append([model, f"{ms:.1f}", *cells])
    means = [f"**{geometric_mean(list(ratios[column].values())):.2f}x**" for column in columns]
    notes = [f"({' / '.join(labels)})", "(the same)"] if labels else []
    rows.append(["**geomean**", "", *means, *notes])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _label(line: dict[str, str]) -> str:
    return Case(line["model"], line["peer"], 1, "", 1, line["executor"], line["searcher"]).label


def _is_ours(label: str) -> bool:
    return label.partition("/")[0] == OURS


def write_plot(rows: Sequence[Row], path: Path) -> None:
    """Draws each peer's speed-up over eager on each model, with its quartiles, and the geometric means.

    Args:
        rows: Rows grouped by model, of one batch, dtype and number of threads.
        path: Where to write; the ending chooses the format.
    """
    from matplotlib.figure import Figure

    by_peer = ratios_by_peer(rows)
    peers = [peer for peer in by_peer if peer != PEERS[0]]
    labels = [*dict.fromkeys(row.case.model for row in rows), "geomean"]
    height = 0.8 / max(1, len(peers))
    figure = Figure(figsize=(8, 1.6 + 0.42 * len(labels)), layout="constrained")
    axes = figure.add_subplot()
    for index, peer in enumerate(peers):
        offset = (index - (len(peers) - 1) / 2) * height
        good = [row for row in rows if row.case.label == peer and row.ratio is not None and not row.reason]
        positions = [labels.index(row.case.model) + offset for row in good] + [len(labels) - 1 + offset]
        ratios = [row.ratio or 0.0 for row in good] + [geometric_mean(by_peer[peer])]
        below = [(row.ratio or 0.0) - (row.ratio_q1 or 0.0) for row in good] + [0.0]
        above = [(row.ratio_q3 or 0.0) - (row.ratio or 0.0) for row in good] + [0.0]
        # Bars begin at 1: to the right is faster than eager, to the left slower.
        lengths = [ratio - 1 for ratio in ratios]
        axes.barh(positions, lengths, height, 1, xerr=[below, above], label=peer, error_kw={"linewidth": 0.8})
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_xlabel(f"speed-up over {PEERS[0]}")
    case = rows[0].case
    axes.set_title(f"batch {case.batch}, {case.dtype}, {case.threads} threads\n{machine()}", fontsize=8)
    if peers:
        figure.legend(loc="outside lower center", ncols=len(peers), fontsize=8)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    print(markdown(Path(sys.argv[1])))
