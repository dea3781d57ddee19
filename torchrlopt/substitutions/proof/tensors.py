"""Tensors as functions from indices to real numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchrlopt.substitutions.proof.forms import Form
from torchrlopt.substitutions.proof.polynomial import Poly
from torchrlopt.substitutions.proof.scope import Scope

Index = Sequence[Poly]


@dataclass
class Tensor:
    """A tensor of one case.

    Attributes:
        dtype: as in graph text.
        shape: its sizes.
        read: returns its element at an index.
        name: of an input; empty for a result.
        value: of a one-element constant, in the instance.
        content: of an integer constant.
        as_number: whether the substitution uses its value, which is then that number everywhere.
        elements: if it is a reshape: the tensor with the same elements in the same order.
    """

    dtype: str
    shape: tuple[Poly, ...]
    read: Callable[[Index], Form]
    name: str = ""
    value: float | None = None
    content: list[Poly] | None = None
    as_number: bool = False
    elements: Tensor | None = None

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


@dataclass(frozen=True)
class Number:
    """A float in the text: its form, and its value in the instance."""

    form: Form
    value: float


@dataclass
class Call:
    """A call of an operator.

    Attributes:
        scope: of the case.
        inputs: None for an omitted one.
        attrs: all attributes of the operator: Poly, Number, str, or lists of them.
        num_outputs: number of outputs that the line names.
    """

    scope: Scope
    inputs: list[Tensor | None]
    attrs: Mapping[str, Any]
    num_outputs: int = 1

    def tensor(self, position: int) -> Tensor:
        """A required input."""
        found = self.inputs[position]
        assert found is not None, "an input that the operator needs is left out"
        return found

    def has(self, position: int) -> bool:
        """Whether an input is present."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def fixed(self, name: str) -> int:
        """An attribute that the definition branches on."""
        return self.scope.fixed(self.attrs[name])

    def axis(self, name: str, rank: int) -> int:
        """An axis, counted from the front."""
        return normal_axis(self.fixed(name), rank)

    def axes(self, name: str, rank: int) -> list[int]:
        """Axes, counted from the front."""
        return [normal_axis(self.scope.fixed(each), rank) for each in self.attrs[name]]

    def sizes(self, name: str) -> list[Poly]:
        """A list of integers."""
        return [self.scope.norm(each) for each in self.attrs[name]]


def normal_axis(axis: int, rank: int) -> int:
    """Counted from the front."""
    return axis + rank if axis < 0 else axis


def same_size(scope: Scope, a: Poly, b: Poly) -> Poly:
    """Two sizes that the operator requires to be equal."""
    scope.assume_equal(a, b)
    return scope.norm(a)


def broadcast_shapes(scope: Scope, shapes: Sequence[Sequence[Poly]]) -> tuple[Poly, ...]:
    """The broadcast shape; sizes are equal or 1, as in the instance."""
    rank = max(len(shape) for shape in shapes)
    result = []
    for axis in range(-rank, 0):
        sizes = [shape[axis] for shape in shapes if len(shape) >= -axis]
        widest = max(sizes, key=scope.value_of)
        for size in sizes:
            scope.assume_equal(size, widest if scope.value_of(size) == scope.value_of(widest) else 1)
        result.append(scope.norm(widest))
    return tuple(result)


def same_shapes(scope: Scope, a: Sequence[Poly], b: Sequence[Poly]) -> bool:
    """Whether two shapes are known to be equal."""
    return [scope.norm(size) for size in a] == [scope.norm(size) for size in b]


def read_broadcast(scope: Scope, tensor: Tensor, index: Index) -> Form:
    """An element of the tensor broadcast to a shape of at least its rank."""
    own = index[len(index) - tensor.rank :]
    zero = Poly({})
    return tensor.read(
        [zero if scope.norm(size) == 1 else at for size, at in zip(tensor.shape, own, strict=True)]
    )
