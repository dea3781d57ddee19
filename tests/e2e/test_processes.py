"""A second process finds the plan of the first without a search."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import json, sys, torch
from tests.e2e.models import STRICT, Branches, assert_same, build
from torchrlopt import optimise
from torchrlopt.plan import planning
calls = []
plain_search = planning.search_plan
planning.search_plan = lambda *a, **k: calls.append(1) or plain_search(*a, **k)
model = build(Branches)
optimised = optimise(model, torch.randn(5, 16), **{**STRICT, **json.loads(sys.argv[1])})
assert_same(model, optimised, torch.randn(5, 16))
report = optimised.report
print(json.dumps([report.is_cache_hit, len(calls), report.kept, len(report.steps)]))
"""


def start(store: Path, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "TORCHRLOPT_CACHE_DIR": str(store), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CODE, json.dumps(options)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def result(run: subprocess.Popen[str]) -> tuple[bool, int, str, int]:
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 0
    is_hit, searches, kept, steps = json.loads(out.splitlines()[-1])
    return is_hit, searches, kept, steps


def test_second_process_hits_the_store_and_does_not_search(tmp_path: Path) -> None:
    first = result(start(tmp_path / "store"))
    assert first[:3] == (False, 1, "rewritten")
    assert result(start(tmp_path / "store")) == (True, 0, "rewritten", first[3])
