"""Demo on real models: optimise each, check it, time it against eager, print a table.

`make demo` runs it; `python -m baselines.demo MODEL...` takes any names of `baselines.models.NAMES`.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import torchrlopt
from baselines.models import NAMES, build
from baselines.shared.arguments import choose
from baselines.shared.rounds import alternated_us

DEFAULT = ["squeezenet1_1", "resnet18", "repvgg_a0", "linear_attention", "heads_loop", "moe_loop"]
ROUNDS = 15


def first_tensor(output: Any) -> torch.Tensor:
    """The first output of a model."""
    return output if isinstance(output, torch.Tensor) else output[0]


def row(name: str) -> list[str]:
    """Optimise one model of the suite; returns the cells of its row."""
    model, inputs = build(name)
    start = time.perf_counter()
    optimised = torchrlopt.optimise(model, inputs)
    seconds = time.perf_counter() - start
    # A user's code: the plan is in the store by now, so this compiles without a search.
    compiled = torch.compile(model, backend="rlopt")
    expected, got = first_tensor(model(*inputs)), first_tensor(compiled(*inputs))
    error = ((expected - got).abs().max() / expected.abs().max()).item()
    times = alternated_us({"eager": lambda: model(*inputs), "ours": lambda: compiled(*inputs)}, ROUNDS)
    eager_ms, compiled_ms = (statistics.median(us) / 1e3 for us in times.values())
    report = optimised.report
    steps = Counter(step.substitution for step in report.steps)
    return [
        name,
        f"{eager_ms:.2f}",
        f"{compiled_ms:.2f}",
        f"{eager_ms / compiled_ms:.2f}x",
        f"{error:.0e}",
        f"{seconds:.1f}",
        report.kept if report.fallback_reason is None else f"original: {report.fallback_reason}",
        ", ".join(f"{count} {step}" for step, count in steps.most_common(3)),
    ]


def main(
    models: Annotated[list[str] | None, typer.Argument(help="Names of the suite.")] = None,
    threads: Annotated[int, typer.Option(help="Threads of PyTorch.", min=1)] = 2,
) -> None:
    """Optimise real models with torchrlopt and compare them with eager PyTorch (batch 1, float32).

    Example: python -m baselines.demo resnet18 moe_loop
    """
    names = choose(",".join(models or DEFAULT), NAMES, "model")
    torch.set_num_threads(threads)
    table = Table(title=f"torchrlopt, eager executor, batch 1, float32, {threads} threads")
    for column in ("model", "eager ms", "rlopt ms", "speed-up", "error", "optimise s", "kept", "most used"):
        table.add_column(column, overflow="fold")
    with torch.no_grad():
        for name in track(names, description="optimising"):
            table.add_row(*row(name))
    Console(width=max(Console().width, 140)).print(table)


if __name__ == "__main__":
    typer.run(main)
