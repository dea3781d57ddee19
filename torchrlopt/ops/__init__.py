"""Operators, one family a file: ATen calls as ONNX nodes, and ONNX nodes as ATen calls.

Importing the package fills the table of each direction: `to_onnx.TABLE` and `to_aten.CONVERTERS`.
"""

from torchrlopt.ops import (
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
    reduce,
    resize,
    shape,
    sizes,
)

FAMILIES = (
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
    reduce,
    resize,
    shape,
    sizes,
)
