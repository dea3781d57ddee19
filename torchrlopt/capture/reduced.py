"""Inputs of a smaller batch, where the batch is a free dimension: enough to see whether a graph is right.

A graph whose sizes are symbols is right for all sizes that its guards allow. A float64 run of a few rows says
as much of it as one of the user's whole batch, and takes a fraction of its time and memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sympy
import torch

_SIZES = (4, 6, 8, 16)
"""Batches that are tried, for what a graph asks of its sizes, such as to be even."""


def reduced_inputs(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], static: Collection[int]
) -> list[Any] | None:
    """The first rows of the inputs, in the strides that the graph gives them.

    Args:
        graph: an ATen graph with `meta["val"]`, traced for these inputs.
        inputs: its inputs in order: tensors, and ints for symbolic sizes.
        static: positions of the weights, which stay as they are.

    Returns:
        None where there is no free first dimension that is larger, or no smaller size fits.
    """
    fakes = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
    if len(fakes) != len(inputs) or any(
        _symbols_of(fake) for at, fake in enumerate(fakes) if at in static and isinstance(fake, torch.Tensor)
    ):
        return None
    sizes: dict[sympy.Symbol, int] = {}
    batches: dict[sympy.Symbol, torch.SymInt] = {}
    for fake, example in zip(fakes, inputs, strict=True):
        if isinstance(fake, torch.Tensor):
            for number, (dim, size) in enumerate(zip(fake.shape, example.shape, strict=True)):
                if isinstance(dim, torch.SymInt) and dim.node.expr.is_Symbol:
                    sizes[dim.node.expr] = int(size)
                    if number == 0:
                        batches[dim.node.expr] = dim
        elif isinstance(fake, torch.SymInt) and fake.node.expr.is_Symbol:
            sizes[fake.node.expr] = int(example)
    for size in _SIZES:
        smaller = {symbol: size for symbol in batches if sizes[symbol] > size}
        if smaller and _is_allowed(next(iter(batches.values())).node.shape_env, sizes | smaller):
            return _cut(fakes, inputs, sizes | smaller)
    return None


def _symbols_of(fake: torch.Tensor) -> bool:
    return any(isinstance(dim, torch.SymInt) for dim in fake.shape)


def _is_allowed(shape_env: Any, sizes: Mapping[sympy.Symbol, int]) -> bool:
    """Whether these sizes keep to what was asked while the graph was traced."""
    for symbol, size in sizes.items():
        span = shape_env.var_to_range.get(symbol)
        if span is not None and not span.lower <= size <= span.upper:
            return False
    asked = (guard.expr for guard in shape_env.guards)
    return all(_valued(expression, sizes) == sympy.true for expression in asked)


def _cut(fakes: Sequence[Any], inputs: Sequence[Any], sizes: Mapping[sympy.Symbol, int]) -> list[Any] | None:
    """The inputs in these sizes; None where one of them is not a part of what there is."""
    cut: list[Any] = []
    for fake, example in zip(fakes, inputs, strict=True):
        if not isinstance(fake, torch.Tensor):
            number = _number(fake, sizes)
            cut.append(example if number is None else number)
            continue
        if not any(isinstance(each, torch.SymInt) for each in (*fake.shape, *fake.stride())):
            cut.append(example)
            continue
        shape = [_number(each, sizes) for each in fake.shape]
        strides = [_number(each, sizes) for each in fake.stride()]
        if any(
            size is None or not 0 < size <= old for size, old in zip(shape, example.shape, strict=True)
        ) or any(stride is None or stride < 0 for stride in strides):
            return None
        part = example.detach()[tuple(slice(size) for size in shape)]
        held = torch.empty_strided(shape, strides, dtype=example.dtype, device=example.device)
        if held.untyped_storage().nbytes() < part.nbytes:
            return None  # elements share memory, and cannot be written to one by one
        cut.append(held.copy_(part))
    return cut


def _number(value: Any, sizes: Mapping[sympy.Symbol, int]) -> int | None:
    """The value of a size or a stride; None where it hangs on something else."""
    if not isinstance(value, torch.SymInt):
        return value if isinstance(value, int) else None
    found = _valued(value.node.expr, sizes)
    return int(found) if found.is_Integer else None


def _valued(expression: sympy.Basic, sizes: Mapping[sympy.Symbol, int]) -> sympy.Basic:
    """The expression for these sizes."""
    return expression.xreplace({symbol: sympy.Integer(size) for symbol, size in sizes.items()})
