"""Importing the package starts nothing, opens nothing and sets nothing; nobody waits for needless imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torchrlopt
from torchrlopt.storage.directory import VARIABLE

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
from torchrlopt.substitutions import load_library
load_library()
found |= {name: "is imported" for name in ("z3", "gymnasium", "torch_geometric") if name in sys.modules}
print(json.dumps(found))
"""
# Every stage that a model goes through with the default options.
STAGES = [
    "compile.backend", "agent.catalogue", "env", "executors.eager.executor", "api.explain", "substitutions",
]  # fmt: skip


def test_importing_changes_nothing() -> None:
    printed = _run("-c", CODE, *(f"torchrlopt.{name}" for name in STAGES))
    assert json.loads(printed.splitlines()[-1]) == {}


ALONE = """
import sys
import torchrlopt
assert not set(sys.argv[1:]) & set(sys.modules)
assert callable(torchrlopt.optimise)
assert "torch" in sys.modules
"""
NEEDLESS = (
    "gymnasium",
    "jinja2",
    "onnx.reference",
    "onnxruntime",
    "onnxscript",
    "openvino",
    "pandas",
    "rich",
    "tensorboard",
    "tensorrt",
    "torch_geometric",
    "torchrlopt._tools",
    "transformers",
    "typer",
)
FIRST_CALL = """
import sys
import torch
import torchrlopt
mlp = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)).eval()
optimised = torchrlopt.optimise(mlp, torch.randn(64, 32), on_error="raise", min_gain=-9.0)
assert optimised.report.kept == "rewritten"
print(*(name for name in sys.argv[1:] if name in sys.modules))
from torchrlopt.api import cli
assert "torchrlopt._tools" not in sys.modules
"""


def _run(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    return done.stdout


def test_the_package_and_the_version_do_without_pytorch() -> None:
    _run("-c", ALONE, "torch", "onnx", "onnx_ir", "torchrlopt._C", *NEEDLESS)
    for argument in ("version", "--version"):
        code = (
            "import runpy, sys\n"
            f"sys.argv = ['torchrlopt', {argument!r}]\n"
            "runpy.run_module('torchrlopt', run_name='__main__')\n"
            "assert 'torch' not in sys.modules"
        )
        assert _run("-c", code).strip() == torchrlopt.__version__


def test_a_first_call_imports_no_more_than_it_needs(tmp_path: Path) -> None:
    """An installed runtime, the page of the report and the exporter each take up to seconds to import.

    Nor is there a compiler: an image for serving may go without g++.
    """
    absent = dict.fromkeys(("PATH", "CC", "CXX"), "/nonexistent")
    environment = {**os.environ, VARIABLE: str(tmp_path), **absent}
    assert _run("-c", FIRST_CALL, *NEEDLESS, environment=environment).split() == []
