"""Importing the package starts nothing, opens nothing and sets nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import json, os, sys, threading
import torch, torch._dynamo, torch._inductor, torch._functorch.config
from tests.process_state import changes, process_state

def handles():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # of the list itself
            pass
    return sorted(found)

def seen():
    return process_state() | {"tasks": len(os.listdir("/proc/self/task")), "handles": handles()}

before = seen()
for module in sys.argv[1:]:
    __import__(module)
found = {name: repr(each) for name, each in changes(before, seen()).items()}
if len(sys.argv) > 2:
    from torchrlopt.substitutions import load_library
    load_library()
found |= {name: "is imported" for name in ("z3", "gymnasium", "torch_geometric") if name in sys.modules}
print(json.dumps(found))
"""
# Every stage that a model goes through with the default options.
STAGES = ["compile.backend", "agent.catalogue", "executors.eager.executor", "api.explain", "substitutions"]


@pytest.mark.parametrize(
    "modules", [["torchrlopt"], [f"torchrlopt.{name}" for name in STAGES]], ids=["package", "stages"]
)
def test_importing_changes_nothing(modules: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *modules], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert json.loads(done.stdout.splitlines()[-1]) == {}
