"""Conversions between float32 and bfloat16 in graphs of mixed types."""

from __future__ import annotations

from torch import fx

from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.lowering.fx_values import cast_to, tensor_of


def is_conversion(node: object) -> bool:
    """Whether a call converts between two dtypes of our kernels, and both have kernels here."""
    if cast_to(node) is None:
        return False
    assert isinstance(node, fx.Node)
    return indirect.are_for(tensor_of(node)) and indirect.are_for(tensor_of(node.args[0]))
