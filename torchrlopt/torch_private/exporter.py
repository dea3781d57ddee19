"""Parts of the ONNX exporter that translate one node."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import NamedTuple

_PACKAGE = "torch.onnx._internal.exporter"


class ExporterParts(NamedTuple):
    """Modules of the exporter."""

    registration: ModuleType
    dispatching: ModuleType
    building: ModuleType
    tensors: ModuleType


def exporter_parts() -> ExporterParts:
    """Import the modules; raise ImportError if this PyTorch lacks one."""
    names = (f"_{name}" for name in ExporterParts._fields)
    return ExporterParts(*(importlib.import_module(f"{_PACKAGE}.{name}") for name in names))
