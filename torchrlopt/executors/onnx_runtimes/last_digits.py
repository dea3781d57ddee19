"""Finds nodes whose last digit decides between integers, as in floor(x / 61), and refuses them.

OpenVINO computes quotients as products with reciprocals. Both runtimes fuse consecutive operators, and ONNX
Runtime omits roundings to float16 in between. A single sum or product by itself has the same result
everywhere.
"""

from __future__ import annotations

import onnx_ir

from torchrlopt.errors import UnsupportedError
from torchrlopt.onnx.writer import KEEPS_BITS

_ALONE = frozenset({"Add", "Cast", "Mul", "Sub"})
"""Rounded once, hence the same everywhere, unless fused with other operators."""

_NEVER = frozenset(
    {
        "CumSum", "Div", "HardSigmoid", "HardSwish", "LeakyRelu", "Mod", "PRelu", "Pow", "Reciprocal",
        "ReduceL1", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Softsign", "Sqrt", "Sum",
    }
)  # fmt: skip

_NARROW = frozenset({onnx_ir.DataType.FLOAT16, onnx_ir.DataType.BFLOAT16})


REASON = "a last digit, by which a later operator decides, may be rounded in another way"


def of_last_digits(model: onnx_ir.Model) -> dict[onnx_ir.Node, str]:
    """The nodes that another runtime may round differently where it matters.

    Args:
        model: from `onnx.writer`, whose nodes are marked if they must keep their bits.
    """
    rounded: set[onnx_ir.Value] = set()
    found = {}
    for node in model.graph:
        if KEEPS_BITS not in node.meta:
            continue
        is_rounded = any(value in rounded for value in node.inputs)
        is_narrow = any(value.dtype in _NARROW for value in node.outputs)
        rounds = node.op_type in _ALONE or node.op_type in _NEVER
        if node.op_type in _NEVER or (rounds and (is_rounded or is_narrow)):
            found[node] = REASON  # its readers get a result rounded by PyTorch
        elif rounds or is_rounded:
            rounded.update(node.outputs)
    return found


def refuse_last_digits(model: onnx_ir.Model) -> None:
    """Raise UnsupportedError if there are any."""
    for node, reason in of_last_digits(model).items():
        raise UnsupportedError(reason, where=str(node.name), got=node.op_type)
