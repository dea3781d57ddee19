"""Draws inputs for checking a file according to how they are read, as there are no example inputs.

A divisor is not zero, an index is within its table, a target shape keeps the number of elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir
import torch

NUM_ATTEMPTS = 3
"""Number of kinds of inputs, see `drawn`."""

_Draw = Callable[[onnx_ir.Node, int], "list[int] | range"]
"""Maps a node and a number of elements to the elements of one of its inputs, or to a range to draw from."""

# Nodes whose output contains elements of their first input.
_PASS_ON = frozenset({
    "Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose",
    "Unsqueeze",
})  # fmt: skip

_MAX_DEPTH = 8  # of nodes that pass values on


def drawn(
    arguments: Sequence[tuple[onnx_ir.Value, torch.Tensor]], seed: int, attempt: int = 0
) -> list[torch.Tensor]:
    """Draw tensors for values of a model.

    Floating point tensors are standard normal, or positive if they are factors of sizes. Integers are drawn
    to suit their readers; otherwise they are 0 or 1, which is valid as an index into almost anything.

    Args:
        arguments: the values, with fake tensors of concrete sizes.
        seed: of the random generator.
        attempt: 0, or for integers without known constraints: 1 makes them all 1, 2 makes them all 0.
    """
    generator = torch.Generator().manual_seed(seed)
    others = (range(2), range(1, 2), range(1))[attempt]
    return [_drawn(value, fake, generator, others) for value, fake in arguments]


def _drawn(
    value: onnx_ir.Value, fake: torch.Tensor, generator: torch.Generator, others: range
) -> torch.Tensor:
    shape, dtype = fake.shape, fake.dtype
    is_float = dtype.is_floating_point or dtype.is_complex
    readers = [(node, (node.op_type, slot)) for node, slot in _readers(value)]
    draws = (
        (node, _DRAWS[place])
        for node, place in readers
        if place in _DRAWS and (not is_float or place in _OF_ANY_TYPE)
    )
    found = next(draws, None)
    if found is None and is_float:
        tensor = torch.randn(shape, generator=generator, dtype=torch.float64)
        is_factor = any(op in ("Resize", "Upsample") and slot for _, (op, slot) in readers)
        return (1 + tensor.abs().clamp(max=1) if is_factor else tensor).to(dtype)
    span = others if found is None else found[1](found[0], math.prod(shape))
    if isinstance(span, range):
        return torch.randint(span.start, span.stop, shape, generator=generator).to(dtype)
    return torch.tensor(span, dtype=torch.int64).reshape(shape).to(dtype)


def _readers(value: onnx_ir.Value, depth: int = 0) -> Iterator[tuple[onnx_ir.Node, int]]:
    """The nodes that read a value, and the input slot; includes readers of values passed on from it."""
    for use in value.uses():
        yield use.node, use.idx
        is_passed_on = use.node.op_type in _PASS_ON and (use.idx == 0 or use.node.op_type == "Concat")
        if is_passed_on and depth < _MAX_DEPTH:
            yield from _readers(use.node.outputs[0], depth + 1)


# ---- values that readers accept


def _target(node: onnx_ir.Node, count: int) -> list[int]:
    """The declared output shape of the node; otherwise one dimension that takes all elements."""
    shape = node.outputs[0].shape
    if shape is not None and len(shape) == count and all(isinstance(dim, int) for dim in shape):
        return [int(dim) for dim in shape]  # type: ignore[arg-type]  # checked above
    if node.op_type == "Expand" or not count:
        return [1] * count
    return [-1] + [1] * (count - 1)


def _index(node: onnx_ir.Node, count: int) -> range:
    """Indices into an axis of known size; 0 if the size is unknown."""
    table = node.inputs[0]
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    if table is None or table.shape is None or not -len(table.shape) <= axis < len(table.shape):
        return range(1)
    size = table.shape[axis]
    return range(max(min(size, 8), 1)) if isinstance(size, int) else range(1)


def _parts(node: onnx_ir.Node, count: int) -> list[int]:
    """Sizes of this many parts that add up to an axis of known size."""
    whole = node.inputs[0]
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    known = whole is not None and whole.shape is not None and -len(whole.shape) <= axis < len(whole.shape)
    size = whole.shape[axis] if known else None  # type: ignore[union-attr,index]  # checked above
    total = size if isinstance(size, int) else count
    return [total // count + (index < total % count) for index in range(count)]


def _same(number: int) -> _Draw:
    return lambda node, count: [number] * count


def _between(start: int, stop: int) -> _Draw:
    return lambda node, count: range(start, stop)


# Element counts and steps that may be floating point.
_OF_ANY_TYPE = frozenset({("OneHot", 1), ("Range", 0), ("Range", 1), ("Range", 2)})

_DRAWS: Mapping[tuple[str, int], _Draw] = {
    ("Div", 1): _between(1, 4),
    ("Mod", 1): _between(1, 4),
    ("Reshape", 1): _target,
    ("Expand", 1): _target,
    ("Tile", 1): _between(1, 3),
    ("ConstantOfShape", 0): _between(1, 3),
    ("OneHot", 1): _same(4),
    ("TopK", 1): _same(1),
    ("Range", 0): _same(0),
    ("Range", 1): _same(3),
    ("Range", 2): _same(1),
    ("Gather", 1): _index,
    ("GatherElements", 1): _index,
    ("ScatterElements", 1): _index,
    ("Slice", 1): _same(0),
    ("Slice", 2): _same(2),
    ("Slice", 3): lambda node, count: list(range(count)),
    ("Slice", 4): _same(1),
    ("Resize", 3): _target,
    ("Split", 1): _parts,
}
