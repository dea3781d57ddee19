"""How exact each runtime's operators are, beside PyTorch's: `python -m baselines.runtime_accuracy --help`.

One operator at a time at nine scales and with offsets, against float64. An error counts by the size of its
element, or by 1e-30 where that is smaller. It is let pass where it is a few times PyTorch's own at that
scale, or a few times what a change of the input's last digit does to the exact result.
"""

from __future__ import annotations

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
    table = Table(*CSV_COLUMNS)
    for row in rows:
        table.add_row(*row)
    console = terminal.console()
    console.print(terminal.machine(), highlight=False)
    console.print(table)
    if csv is not None:
        csv_files.write(csv, CSV_COLUMNS, rows)


if __name__ == "__main__":
    typer.run(main)
