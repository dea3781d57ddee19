"""One choice in its process: `python -m baselines.shared.choosing MODEL EXECUTOR THREADS` prints JSON."""

from __future__ import annotations

import json
import sys

import torch

import torchrlopt
from baselines.models import build


def main() -> None:
    """What is kept of the model named on the command line, and what each attempt took beside the original."""
    name, executor, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    model, inputs = build(name)
    report = torchrlopt.optimise(model, inputs, executor=executor, cache=False, on_error="raise").report
    ratios = {f"{each.executor}, {each.searcher}": each.ratio for each in report.choices}
    chosen = f"{report.executor}, {report.searcher}"
    if not ratios and report.measured_before_ms and report.measured_after_ms:
        ratios = {chosen: report.measured_after_ms / report.measured_before_ms}
    answer = {
        "chosen": "original" if report.kept == "original" else chosen,
        "ratios": {name: ratio for name, ratio in ratios.items() if ratio is not None},
        "before_ms": report.measured_before_ms,
        "after_ms": report.measured_after_ms,
        "spread": report.measured_spread,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
