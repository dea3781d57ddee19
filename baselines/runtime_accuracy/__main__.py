"""Accuracy of each runtime's operators against PyTorch's: `python -m baselines.runtime_accuracy --help`.

Tests one operator at a time at nine scales and with offsets, against float64. Errors are relative to the size
of the element, or to 1e-30 if that is larger. An error is accepted if it is at most a few times PyTorch's own
at that scale, or a few times the effect of a change in the input's last digit on the exact result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from baselines.runtime_accuracy.cases import CASES
from baselines.runtime_accuracy.measured import measured
from baselines.shared import csv_files, terminal
from baselines.shared.arguments import CsvFile, choose
from torchrlopt.executors.onnx_runtimes.conditioning import ROWS

CSV_COLUMNS = ("runtime", "operator", "input", "pytorch", "alone", "as run", "verdict")


def main(
    runtimes: Annotated[str, typer.Option(help="onnxruntime, openvino, or all.")] = "all",
    operators: Annotated[str, typer.Option(help="Some of the operators, or all.")] = "all",
    all_inputs: Annotated[
        bool, typer.Option(help="Show every input, not the worst of each operator.")
    ] = False,
    csv: CsvFile = None,
) -> None:
    """Compare each operator of each runtime with PyTorch's, against float64.

    Errors are relative, the largest of all elements. "alone" is the runtime's own operator, "as run" what the
    executor gives it instead.

    Example: python -m baselines.runtime_accuracy --runtimes onnxruntime --csv runtime_accuracy.csv
    """
    names = choose(operators, list(CASES), "operator")
    rows = [
        row
        for runtime in choose(runtimes, list(ROWS), "runtime")
        for name in names
        for row in measured(runtime, name)
    ]
    if not all_inputs:
        rows = worst(rows)
    table = Table(*CSV_COLUMNS)
    for row in rows:
        table.add_row(*row)
    console = terminal.console()
    console.print(terminal.machine(), highlight=False)
    console.print(table)
    if csv is not None:
        csv_files.write(csv, CSV_COLUMNS, rows)


def worst(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """For each operator of a runtime, the row in which the operator itself is farthest from float64."""
    groups: dict[tuple[str, str], list[Sequence[str]]] = {}
    for row in rows:
        groups.setdefault((row[0], row[1]), []).append(row)
    return [max(group, key=lambda row: (row[-1] != "as PyTorch", _error(row))) for group in groups.values()]


def _error(row: Sequence[str]) -> float:
    try:
        return float(row[CSV_COLUMNS.index("alone")])
    except ValueError:  # the operator does not run
        return math.inf


if __name__ == "__main__":
    typer.run(main)
