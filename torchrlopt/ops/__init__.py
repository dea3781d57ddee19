"""Operator translations in both directions, one operator family per file: ATen to ONNX and ONNX to ATen.

Importing the package fills both tables: `to_onnx.TABLE` and `to_aten.CONVERTERS`.
"""

from torchrlopt.ops import (  # noqa: F401  # imported to fill the tables
    attention,
    broadcast,
    conv,
    create,
    elementwise,
    grid,
    index,
    matmul,
    movement,
    normalisation,
    pool,
    quantise,
    recurrent,
    reduce,
    resize,
    shape,
    sizes,
)
