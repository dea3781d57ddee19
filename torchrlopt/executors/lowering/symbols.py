"""Emits numbers for symbolic expressions: sizes and strides as they were traced.

A stride that the original reads off a tensor is not read off the current tensor, whose layout may differ.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx

from torchrlopt.ops.emitter import Emitter, SymInt, aten

STRIDES = frozenset({aten.sym_stride.int, aten.sym_stride.default, aten.sym_storage_offset.default})


def number_of(emitter: Emitter, value: Any) -> SymInt | None:
    """The number, or a node that yields it when the graph runs.

    Args:
        emitter: the graph; its placeholders define the symbols.
        value: a number that was traced.

    Returns:
        None for a value that is not an integer, or an expression with other symbols or functions.
    """
    if isinstance(value, torch.SymInt):
        return _evaluated(emitter, value.node.expr, _symbols(emitter))
    return value if isinstance(value, int) else None


def traced_number(emitter: Emitter, source: fx.Node) -> fx.Node | None:
    """A size or a stride of the original graph, computed from the symbols that it was traced with."""
    found = number_of(emitter, source.meta.get("val"))
    return found if isinstance(found, fx.Node) else None


def _symbols(emitter: Emitter) -> dict[Any, tuple[fx.Node, int | None]]:
    """Maps each symbol to its placeholder, or to the placeholder and the axis whose size it is."""
    found: dict[Any, tuple[fx.Node, int | None]] = {}
    for node in emitter.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            found[value.node.expr] = (node, None)
        elif isinstance(value, torch.Tensor):
            for axis, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    found.setdefault(size.node.expr, (node, axis))
    return found


def _evaluated(
    emitter: Emitter, expression: Any, symbols: dict[Any, tuple[fx.Node, int | None]]
) -> SymInt | None:
    if expression in symbols:
        node, axis = symbols[expression]
        return node if axis is None else emitter.dim(node, axis)
    if expression.is_Integer:
        return int(expression)
    combine = {"Add": emitter.add, "Mul": emitter.mul, "FloorDiv": emitter.floordiv}.get(
        expression.func.__name__
    )
    if combine is None:
        return None
    operands: list[SymInt] = []
    for each in expression.args:
        operand = _evaluated(emitter, each, symbols)
        if operand is None:
            return None
        operands.append(operand)
    return functools.reduce(combine, operands)
