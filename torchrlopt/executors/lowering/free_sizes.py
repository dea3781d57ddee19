"""Chooses numbers for the free sizes of a model from a file, so that two models run at the same sizes.

Only running the model shows which numbers fit: a U-Net needs heights that halve evenly, and exporters give
different names to sizes that must be equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import onnx_ir

_FIRST = 2
_IMAGE = 32  # halves evenly five times, which is enough for detectors and U-Nets
_LARGE_IMAGE = 64


@dataclasses.dataclass(frozen=True)
class Sizes:
    """One choice of sizes.

    Attributes:
        names: sizes by name; a size without a name uses the name of its axis.
        first: for axis 0, if nothing else is known.
        other: for other axes, if nothing else is known.
    """

    names: Mapping[str, int]
    first: int
    other: int

    def known(self, dim: object) -> int | None:
        """The number for a dimension; None if it has no name with a number."""
        if isinstance(dim, int):
            return dim
        parts = _terms(dim)
        numbers = [int(part) if part.isdecimal() else self.names.get(part) for part in parts]
        found = [number for number in numbers if number is not None]
        return sum(found) if parts and len(found) == len(parts) else None

    def assumed(self, dim: object, axis: int) -> int:
        """The number for a dimension, whether or not anything is known about it."""
        number = self.known(dim)
        if number is None:
            number = self.names.get(_axis(axis), self.other if axis else self.first)
        return number


def choices(model: onnx_ir.Model) -> Iterator[Sizes]:
    """The choices worth trying, in order; a single one if no input size is free."""
    axes: dict[str, int] = {}
    for value in model.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int):
                for name in _terms(dim) or [_axis(axis)]:
                    if not name.isdecimal():
                        axes.setdefault(name, axis)
    # All different, so that a value with the wrong one of two sizes is detected.
    yield Sizes({name: _FIRST + index for index, name in enumerate(axes)}, _FIRST, _FIRST + 1)
    if axes:
        for first, other in ((_FIRST, _IMAGE), (3, 3), (1, _LARGE_IMAGE), (1, 1)):
            yield Sizes({name: other if axis else first for name, axis in axes.items()}, first, other)


class Declared:
    """The declared shapes of a model, to be bound to one choice of sizes after another.

    Args:
        model: the shapes of its values are replaced.
    """

    def __init__(self, model: onnx_ir.Model) -> None:
        self.inputs = {value: value.shape for value in model.graph.inputs if value.shape is not None}
        made = (output for node in model.graph for output in node.outputs)
        self.made = {value: value.shape for value in made if value.shape is not None}

    def bind(self, sizes: Sizes) -> None:
        """Replace the sizes of inputs by numbers, and the sizes of other values that follow from them."""
        for value, shape in self.inputs.items():
            value.shape = onnx_ir.Shape([sizes.assumed(dim, axis) for axis, dim in enumerate(shape)])
        for value, shape in self.made.items():
            numbers = [sizes.known(dim) for dim in shape]
            value.shape = onnx_ir.Shape(
                [dim if number is None else number for dim, number in zip(shape, numbers, strict=True)]
            )


def _terms(dim: object) -> list[str]:
    """The names or numbers whose sum is a symbolic size; empty if it has no name.

    Exporters of language models write `past + current` for a concatenation.
    """
    name = dim.value if isinstance(dim, onnx_ir.SymbolicDim) else None
    return [] if name is None else [part.strip() for part in name.split("+")]


def _axis(axis: int) -> str:
    return f"axis {axis}"
