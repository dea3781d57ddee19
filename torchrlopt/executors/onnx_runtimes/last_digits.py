"""Graphs in which a last digit decides between integers, as in floor(x / 61), and whom they may be given to.

OpenVINO computes quotients as products with reciprocals. Both runtimes put operators in sequence together,
and ONNX Runtime leaves out roundings to float16 in between. What one sum or product gives alone is the same
everywhere.
"""

from __future__ import annotations

import onnx_ir

from torchrlopt.errors import UnsupportedError
from torchrlopt.onnx.writer import KEEPS_BITS

_ALONE = frozenset({"Add", "Cast", "Mul", "Sub"})
"""Rounded once, and so in one way, unless they are put together with others."""

_NEVER = frozenset(
    {
        "CumSum", "Div", "HardSigmoid", "HardSwish", "LeakyRelu", "Mod", "PRelu", "Pow", "Reciprocal",
        "ReduceL1", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Softsign", "Sqrt", "Sum",
    }
)  # fmt: skip

_NARROW = frozenset({onnx_ir.DataType.FLOAT16, onnx_ir.DataType.BFLOAT16})


REASON = "a last digit, by which a later operator decides, may be rounded in another way"


def of_last_digits(model: onnx_ir.Model) -> dict[onnx_ir.Node, str]:
    """The nodes that another runtime may round in another way where it matters.

    Args:
        model: as `onnx.writer` gives it, with nodes that say whether they keep their bits.
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
            found[node] = REASON  # and what it gives is as PyTorch rounds it
        elif rounds or is_rounded:
            rounded.update(node.outputs)
    return found


def refuse_last_digits(model: onnx_ir.Model) -> None:
    """Raise UnsupportedError where there are any."""
    for node, reason in of_last_digits(model).items():
        raise UnsupportedError(reason, where=str(node.name), got=node.op_type)
