"""Measures where the gain comes from on the suite: `python -m baselines.split --help`."""

from __future__ import annotations

from typing import Annotated

import pandas as pd
import torch
import typer
from rich.progress import track

import torchrlopt
from baselines.models import NAMES, build
from baselines.shared import terminal
from baselines.shared.arguments import CsvFile, choose, one
from baselines.shared.tables import Results, of, rich
from torchrlopt import executor_table
from torchrlopt.report import Report

DEFAULT = "resnet18,mobilenet_v3,repvgg_a0,bert_base,vit_s16,moe_loop"
_PARTS = ("all", "plan", "kernels", "runtime")


def main(
    models: Annotated[
        str, typer.Option(help="Models, separated by commas, or 'all' of the suite.")
    ] = DEFAULT,
    executor: Annotated[str, typer.Option(help="As the option of that name.")] = "default",
    threads: Annotated[int, typer.Option(min=1, help="Threads of PyTorch.")] = 2,
    measure_ms: Annotated[float, typer.Option(min=1, help="Of each comparison, in milliseconds.")] = 2000.0,
    csv: CsvFile = None,
) -> None:
    """Measure what plan, kernels and runtime are worth by themselves (batch 1, float32).

    Each is left out alone, and a call without it is timed against one with it. The graph that is rewritten is
    kept whatever its gain, so that there is something to divide.

    Example: python -m baselines.split --threads 2 --csv baselines/results/split.csv
    """
    names = choose(models, NAMES, "model")
    chosen = one(executor, executor_table.choices(), "executor")
    torch.set_num_threads(threads)
    options = {"executor": chosen, "measure_ms": measure_ms, "min_gain": -10.0, "measure_parts": True}
    results = Results("split", csv, batch=1, dtype="float32", threads=threads, setting=chosen)
    for name in track(names, description="optimising", console=terminal.console()):
        torch.compiler.reset()
        model, inputs = build(name)
        _add(results, name, torchrlopt.optimise(model, inputs, **options).report)
        results.save()
    terminal.console().print(rich("A call without each part over one with it", table(results.frame)))


def _add(results: Results, name: str, report: Report) -> None:
    peer = f"torchrlopt/{report.executor}"
    if not report.split:
        results.add(name, peer, "failure", None, note=report.fallback_reason or "nothing to divide")
        return
    results.add(name, peer, "steps", len(report.steps), note=", ".join(e.finder for e in report.searches))
    for each in report.split:
        note = "" if each.is_calm else "busy"
        results.add(name, peer, f"without {each.part}", each.without_ms, "ms", note=note)
        results.add(name, peer, f"with {each.part}", each.with_ms, "ms", note=note)


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per model: the speed-up, the factor of each part, and what found how many steps."""
    rows = []
    for (model, peer), own in frame.groupby(["model", "peer"], sort=False):
        found = own.set_index("metric").value
        if "with all" not in found:
            continue
        steps = of(own, metric="steps").iloc[0]
        parts = {
            part: f"{found[f'without {part}'] / found[f'with {part}']:.2f}x"
            if f"with {part}" in found
            else "-"
            for part in _PARTS
        }
        rows.append({
            "model": model, "executor": str(peer).removeprefix("torchrlopt/"),
            "speed-up": parts.pop("all"), **parts,
            "steps": f"{steps.value:.0f}", "found by": steps.note if steps.value else "",
        })  # fmt: skip
    return pd.DataFrame(rows)


if __name__ == "__main__":
    typer.run(main)
