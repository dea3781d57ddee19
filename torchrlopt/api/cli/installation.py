"""`torchrlopt info` and `agent info`: describe the installation, and a checkpoint by its metadata."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchrlopt import __version__, executor_table
from torchrlopt.agent import catalogue, checkpoint
from torchrlopt.api.cli.tables import two_columns
from torchrlopt.executors import registry
from torchrlopt.machine.device import describe
from torchrlopt.options import SearchOptions
from torchrlopt.storage.directory import default_directory
from torchrlopt.substitutions import load_library

#: Metadata that describe how an agent was made and how good it is.
_TOLD = ("file", "row", "kind", "hours", "updates", "real_steps", "hardware", "library_hash", "schema_hash")


def look() -> dict[str, Any]:
    """Return versions, devices, executors and the agent, as data."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return {
        "torchrlopt": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
        "torch.compile finds the backend": "rlopt" in torch.compiler.list_backends(),
        "substitutions": len(load_library()),
        "cache": str(default_directory()),
        "devices": {name: str(describe(torch.device(name))["name"]) for name in devices},
        "executors": {row.name: _executor(row, devices) for row in executor_table.ROWS},
        "agent": _agent(),
    }


def render(found: Mapping[str, Any]) -> str:
    """Format the result of `look` as a table."""
    parts = ("devices", "executors")
    plain = [(name, value) for name, value in found.items() if name not in parts]
    return two_columns("torchrlopt info", plain, *(found[part].items() for part in parts))


def _executor(row: executor_table.ExecutorRow, devices: list[str]) -> str:
    """Say in words whether an executor runs here."""
    version = registry.version(row.name)
    runs_on = [device for device in devices if row.name in registry.available(device)]
    words = f"runs on {', '.join(runs_on)}" if runs_on else f"needs {' or '.join(row.devices or devices)}"
    if row.package is None:
        return words
    return (
        f"{words}, {row.package} {version}"
        if version
        else f"not installed: pip install {row.package}, {words}"
    )


def _agent() -> str:
    path = catalogue.path_of(SearchOptions())
    return str(path) if path.exists() else f"{path} is missing: greedy and local search instead"


def look_at_agent(path: Path | None) -> dict[str, str]:
    """Return the metadata of a checkpoint, or of the one that is used by default."""
    path = path or catalogue.path_of(SearchOptions())
    return {"file": str(path), **checkpoint.load(path, load_library()).metadata}


def render_agent(found: Mapping[str, str]) -> str:
    """Format the result of `look_at_agent` as a table."""
    return two_columns("torchrlopt agent", [(name, found[name]) for name in _TOLD if name in found])
