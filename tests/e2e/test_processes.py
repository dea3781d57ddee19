"""Another process finds the plan of this one without a search."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.e2e.models import STRICT, Branches, build
from torchrlopt import optimise

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import json, torch
from tests.e2e.models import STRICT, Branches, assert_same, build
from torchrlopt import optimise
from torchrlopt.plan import planning
planning.search_plan = None
model = build(Branches)
optimised = optimise(model, torch.randn(5, 16), **STRICT)
assert_same(model, optimised, torch.randn(5, 16))
report = optimised.report
print(json.dumps([report.is_cache_hit, report.kept, len(report.steps)]))
"""


@pytest.mark.usefixtures("fresh_dynamo")
def test_another_process_hits_the_store_and_does_not_search() -> None:
    first = optimise(build(Branches), torch.randn(5, 16), **STRICT).report
    assert (first.is_cache_hit, first.kept) == (False, "rewritten")
    printed = subprocess.check_output([sys.executable, "-c", CODE], cwd=ROOT, text=True, timeout=300)
    assert json.loads(printed.splitlines()[-1]) == [True, "rewritten", len(first.steps)]
