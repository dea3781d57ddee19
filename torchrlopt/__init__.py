"""torchrlopt: a torch.compile backend that rewrites the graph by proved or tested substitutions.

`torch.compile(model, backend="rlopt")` needs no import of this package; `optimise` and `optimise_onnx` return
the report or write a file, and `explain` shows what is rewritten for which executor. Importing the package
loads torch and little else.
"""

from torchrlopt.api.explain import explain
from torchrlopt.api.explain.views import Explanation
from torchrlopt.api.optimise import apply_plan, load_plan, optimise, optimise_onnx, reports
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
    "reports",
    "save",
]
