"""torchrlopt: a torch.compile backend that rewrites the graph by proved or tested substitutions.

`torch.compile(model, backend="rlopt")` needs no import of this package; `optimise` and `optimise_onnx` return
the report or write a file, and `explain` shows what is rewritten for which executor. Importing the package
loads nothing: PyTorch and our own modules are imported when a name below is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchrlopt.api.explain import explain
    from torchrlopt.api.explain.views import Explanation
    from torchrlopt.api.optimise import (
        apply_plan,
        load_plan,
        optimise,
        optimise_onnx,
        optimize,
        optimize_onnx,
        reports,
    )
    from torchrlopt.api.saved import load, save
    from torchrlopt.errors import RlOptError
    from torchrlopt.options import Options
    from torchrlopt.report import Report

__version__ = "0.1.0"

__all__ = [
    "Explanation",
    "Options",
    "Report",
    "RlOptError",
    "__version__",
    "apply_plan",
    "explain",
    "load",
    "load_plan",
    "optimise",
    "optimise_onnx",
    "optimize",
    "optimize_onnx",
    "reports",
    "save",
]

_PLACES = {
    "Explanation": "api.explain.views",
    "Options": "options",
    "Report": "report",
    "RlOptError": "errors",
    "apply_plan": "api.optimise",
    "explain": "api.explain",
    "load": "api.saved",
    "load_plan": "api.optimise",
    "optimise": "api.optimise",
    "optimise_onnx": "api.optimise",
    "optimize": "api.optimise",
    "optimize_onnx": "api.optimise",
    "reports": "api.optimise",
    "save": "api.saved",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{place}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
