"""Inputs of a smaller batch, where the batch is a free dimension: enough to see whether a graph is right.

A graph whose sizes are symbols is right for all sizes that its guards allow. A float64 run of a few rows says
as much of it as one of the user's whole batch, and takes a fraction of its time and memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

_SIZES = (4, 6, 8, 16)
"""Batches that are tried, for what a graph asks of its sizes, such as to be even."""


_Sizes = dict[Any, int]
"""What symbols stand for."""


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
    sizes: _Sizes = {}
    batches: dict[Any, torch.SymInt] = {}
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


def _is_allowed(shape_env: Any, sizes: _Sizes) -> bool:
    """Whether these sizes keep to what was asked while the graph was traced."""
    for symbol, size in sizes.items():
        span = shape_env.var_to_range.get(symbol)
        if span is not None and not span.lower <= size <= span.upper:
            return False
    asked = (guard.expr for guard in shape_env.guards)
    return all(expression.subs(sizes) == True for expression in asked)  # noqa: E712  # sympy's true


def _cut(fakes: Sequence[Any], inputs: Sequence[Any], sizes: _Sizes) -> list[Any] | None:
    """The inputs in these sizes; None where one of them is not a part of what there is."""
    cut: list[Any] = []
    for fake, example in zip(fakes, inputs, strict=True):
        if not isinstance(fake, torch.Tensor):
            number = _number(fake, sizes) if isinstance(fake, torch.SymInt) else example
            if number is None:
                return None
            cut.append(number)
            continue
        if not any(isinstance(each, torch.SymInt) for each in (*fake.shape, *fake.stride())):
            cut.append(example)
            continue
        known = [_number(each, sizes) for each in (*fake.shape, *fake.stride())]
        numbers = [each for each in known if each is not None]
        if len(numbers) < len(known):
            return None
        shape, strides = numbers[: fake.dim()], numbers[fake.dim() :]
        if not all(0 < size <= old for size, old in zip(shape, example.shape, strict=True)):
            return None
        part = example.detach()[tuple(slice(size) for size in shape)]
        held = torch.empty_strided(shape, strides, dtype=example.dtype, device=example.device)
        if held.untyped_storage().nbytes() < part.nbytes:
            return None  # elements share memory, and cannot be written to one by one
        cut.append(held.copy_(part))
    return cut


def _number(value: Any, sizes: _Sizes) -> int | None:
    """The value of a size or a stride; None where it hangs on something else."""
    if not isinstance(value, torch.SymInt):
        return value if isinstance(value, int) else None
    found = value.node.expr.subs(sizes)
    return int(found) if found.is_Integer else None
