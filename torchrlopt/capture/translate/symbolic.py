"""Direct translations of arithmetic on symbolic sizes, carried as 0-d int64 values."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from torchrlopt.capture.builder import GraphBuilder
from torchrlopt.capture.onnx_types import value_dims
from torchrlopt.capture.translate.elementwise import operand
from torchrlopt.capture.translate.table import Target, require, static_int, translation


@translation("sym_size.int")
def _sym_size(g: GraphBuilder, target: Target, x: ir.Value, axis: Any) -> ir.Value:
    at = static_int(axis) % len(value_dims(x))
    size = g.op("Shape", x, dtype=torch.int64, dims=(1,), start=at, end=at + 1)
    return g.op("Squeeze", size, g.ints([0]), dims=())


def _register(name: str, op_type: str) -> None:
    @translation(name)
    def translate(g: GraphBuilder, target: Target, x: Any, y: Any) -> ir.Value:
        require(target.dtype == torch.int64, f"{name} of symbolic values that are no sizes")
        return g.op(op_type, operand(g, x, torch.int64), operand(g, y, torch.int64))


_register("operator.add", "Add")
_register("operator.sub", "Sub")
_register("operator.mul", "Mul")
# Mod takes the sign of the divisor, in Python as in ONNX.
_register("operator.mod", "Mod")
_register("torch.sym_max", "Max")
_register("torch.sym_min", "Min")


@translation("operator.neg")
def _neg(g: GraphBuilder, target: Target, x: Any) -> ir.Value:
    require(target.dtype == torch.int64, "a negative of what is no size")
    return g.op("Neg", operand(g, x, torch.int64))


@translation("operator.floordiv")
def _floordiv(g: GraphBuilder, target: Target, x: Any, y: Any) -> ir.Value:
    require(target.dtype == torch.int64, "a quotient of what is no size")
    dividend, divisor = operand(g, x, torch.int64), operand(g, y, torch.int64)
    # ONNX truncates; without the remainder both divisions agree.
    whole = g.op("Sub", dividend, g.op("Mod", dividend, divisor))
    return g.op("Div", whole, divisor)
