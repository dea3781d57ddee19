"""Uses the torchrlopt that is installed: it must come from this environment and have all its parts.

Run by `.ci/sdist` and, for each wheel, by cibuildwheel; from anywhere but the source tree.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch

import torchrlopt


def check_origin() -> None:
    """The package that was imported is the one in this environment, not a source tree."""
    where, installed = Path(torchrlopt.__file__).resolve(), Path(sysconfig.get_path("platlib")).resolve()
    if not where.is_relative_to(installed):
        raise SystemExit(f"error: {where} was imported, expected one in {installed}")


def check_optimise() -> None:
    """The library, the C++ core and the shipped agent rewrite a small model; errors are raised."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
    model, x = torch.nn.Sequential(*layers).eval(), torch.randn(1, 3, 16, 16)
    options = {"on_error": "raise", "measure": False}  # measured, a busy machine might keep the original
    fast = torchrlopt.optimise(model, (x,), **options)
    print(fast.report)
    if fast.report.kept != "rewritten" or fast.report.searcher != "agent" or not fast.report.steps:
        raise SystemExit("error: the model was not rewritten by the agent")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        fast.report.save(page)
        if "class GraphView" not in page.read_text(encoding="utf-8"):
            raise SystemExit("error: the page of the report has no script")
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(model, backend="rlopt", options=options)  # by the entry point
        for function in (fast, compiled):
            torch.testing.assert_close(function(x), model(x), rtol=1e-4, atol=1e-5)


def check_command() -> None:
    """The command is installed and lists what the library has."""
    command = Path(sysconfig.get_path("scripts")) / "torchrlopt"
    for arguments in (["--help"], ["version"], ["substitutions", "list"]):
        subprocess.run([command, *arguments], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    check_origin()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["TORCHRLOPT_CACHE_DIR"] = str(Path(directory) / "cache")
        check_optimise()
        check_command()
    print(
        f"torchrlopt {torchrlopt.__version__} on Python {sys.version.split()[0]}, torch {torch.__version__}"
    )
