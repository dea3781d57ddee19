"""ATen operators as ONNX nodes, one subject a file, collected in one table.

Importing the package fills the table.
"""

from torchrlopt.capture.translate import (
    contraction,
    elementwise,
    index,
    layout,
    normalisation_pool,
    reduce,
    resample,
    symbolic,
)

__all__ = [
    "contraction",
    "elementwise",
    "index",
    "layout",
    "normalisation_pool",
    "reduce",
    "resample",
    "symbolic",
]
