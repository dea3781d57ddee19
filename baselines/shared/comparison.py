"""What a comparison of peers shows and keeps: a table of its rows, why some do not count, a CSV file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean

from rich.table import Table

from baselines.peers.case import PEERS
from baselines.peers.kernel_times import KernelTime
from baselines.shared import csv_files, terminal
from baselines.shared.rounds import Row

#: Columns of the CSV file, in order.
CSV_COLUMNS: tuple[str, ...] = (
    "model", "peer", "executor", "weights", "searcher", "batch", "dtype", "threads",
    "median_ms", "q1_ms", "q3_ms", "peak_mb", "first_call_s",
)  # fmt: skip
#: Columns of a CSV file of kernels.
KERNEL_COLUMNS = ("model", "peer", "batch", "dtype", *KernelTime._fields)
#: Those that the first files of `results/` do not have.
LATER_COLUMNS = ("weights",)

_CASE_COLUMNS = frozenset({"model", "peer", "executor", "weights", "searcher", "batch", "dtype", "threads"})


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
    measures = (
        "median ms", "quartiles", "speed-up", "quartiles", "peak MB", "first call s", "max error",
        "over best peer", "quartiles", "kept",
    )  # fmt: skip
    title = f"Speed-up over {PEERS[0]}: median and quartiles of the rounds' ratios"
    table = terminal.table(title, ("model", "peer"), measures)
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
    """Writes the rows with `CSV_COLUMNS`; a peer that failed keeps its row, with empty numbers."""
    csv_files.write(path, CSV_COLUMNS, ([_csv_value(row, column) for column in CSV_COLUMNS] for row in rows))


def _csv_value(row: Row, column: str) -> object:
    if column in _CASE_COLUMNS:
        return getattr(row.case, column)
    # A wrong result's time is no result.
    value: float | None = None if row.reason else getattr(row, column)
    return "" if value is None else f"{value:.4f}"


def kernel_rows(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line of `KERNEL_COLUMNS` for each kernel of each peer."""
    return [
        (
            *(row.case.model, row.case.peer, str(row.case.batch), row.case.dtype),
            *(each.kernel, str(each.launches), f"{each.kernel_us:.1f}", f"{each.busy_us:.1f}"),
        )
        for row in rows
        for each in row.kernels
    ]


def write_kernels(rows: Sequence[Row], path: Path) -> None:
    """Writes the kernels of all rows that have some to a CSV file."""
    csv_files.write(path, KERNEL_COLUMNS, kernel_rows(rows))
