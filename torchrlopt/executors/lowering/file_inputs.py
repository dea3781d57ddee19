"""Inputs for the check of a file, drawn by what reads them: nobody has given examples.

A number that a model divides by is not zero, an index is inside its table, a target shape has as many
elements as what is reshaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir
import torch

NUM_ATTEMPTS = 3
"""How many kinds of inputs there are, see `drawn`."""

_Draw = Callable[[onnx_ir.Node, int], "list[int] | range"]
"""From a node and the number of elements: the elements of one of its inputs, or a range to draw from."""

# Nodes whose output has the elements of their first input, or some of them.
_PASS_ON = frozenset({
    "Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose",
    "Unsqueeze",
})  # fmt: skip

_MAX_DEPTH = 8  # of nodes that pass values on


def drawn(
    arguments: Sequence[tuple[onnx_ir.Value, torch.Tensor]], seed: int, attempt: int = 0
) -> list[torch.Tensor]:
    """Tensors for values of a model.

    Floating point tensors are standard normal, or positive where they are factors of sizes; integers are what
    their readers can take, else 0 or 1, valid as an index into almost anything.

    Args:
        arguments: the values, with fake tensors whose sizes are numbers.
        seed: of the random generator.
        attempt: 0, or with 1: integers that nothing is known about are all 1; with 2: all 0.
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
    """The nodes that read a value, and in which slot; also those that read what others pass on of it."""
    for use in value.uses():
        yield use.node, use.idx
        is_passed_on = use.node.op_type in _PASS_ON and (use.idx == 0 or use.node.op_type == "Concat")
        if is_passed_on and depth < _MAX_DEPTH:
            yield from _readers(use.node.outputs[0], depth + 1)


# ---- what readers can take


def _target(node: onnx_ir.Node, count: int) -> list[int]:
    """The shape that the node is declared to give; else one dimension that takes all."""
    shape = node.outputs[0].shape
    if shape is not None and len(shape) == count and all(isinstance(dim, int) for dim in shape):
        return [int(dim) for dim in shape]  # type: ignore[arg-type]  # asked for above
    if node.op_type == "Expand" or not count:
        return [1] * count
    return [-1] + [1] * (count - 1)


def _index(node: onnx_ir.Node, count: int) -> range:
    """Indices into an axis of a known size; 0 where it is not known."""
    table = node.inputs[0]
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    if table is None or table.shape is None or not -len(table.shape) <= axis < len(table.shape):
        return range(1)
    size = table.shape[axis]
    return range(max(min(size, 8), 1)) if isinstance(size, int) else range(1)


def _parts(node: onnx_ir.Node, count: int) -> list[int]:
    """Sizes of so many parts that are all of an axis of a known size."""
    whole = node.inputs[0]
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    known = whole is not None and whole.shape is not None and -len(whole.shape) <= axis < len(whole.shape)
    size = whole.shape[axis] if known else None  # type: ignore[union-attr,index]  # asked for above
    total = size if isinstance(size, int) else count
    return [total // count + (index < total % count) for index in range(count)]


def _same(number: int) -> _Draw:
    return lambda node, count: [number] * count


def _between(start: int, stop: int) -> _Draw:
    return lambda node, count: range(start, stop)


# Numbers of elements and steps that may come as floating point numbers.
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
