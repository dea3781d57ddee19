"""Logs of a compilation, enabled by PyTorch's switches for logs and traces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
options = {"measure": False, "cache": False, "searcher": "greedy", "on_error": "raise"}
with torch.no_grad():
    torch.compile(model, backend="rlopt", options=options)(torch.randn(2, 8))
"""


def told(**environment: str) -> str:
    """What a program that compiles a model writes."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True, text=True, check=True, env={**os.environ, **environment},
    )  # fmt: skip
    assert not done.stdout  # a library does not print
    return done.stderr


def test_artefacts_of_a_trace_and_a_debug_log(tmp_path: Path) -> None:
    """Of one process: starting it takes longer than all else."""
    assert "FusedMatMul" in told(TORCH_TRACE=str(tmp_path), TORCH_LOGS="+torchrlopt")
    (trace,) = tmp_path.iterdir()
    lines = trace.read_text().splitlines()
    found = {}
    for number, line in enumerate(lines):
        if '"artifact": {"name": "rlopt_' in line:
            name = json.loads(line[line.index("{") :])["artifact"]["name"]
            payload = []
            for each in lines[number + 1 :]:
                if not each.startswith("\t"):
                    break
                payload.append(each[1:])
            found[name] = "\n".join(payload)
    assert list(found) == ["rlopt_graph_before", "rlopt_graph_after", "rlopt_report"]
    assert "Relu(" in found["rlopt_graph_before"]
    assert "FusedMatMul" in found["rlopt_graph_after"]
    assert json.loads(found["rlopt_report"])["kept"] == "rewritten"
