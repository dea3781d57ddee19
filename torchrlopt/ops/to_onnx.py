"""The table of direct translations: ATen overload -> function that emits its ONNX nodes.

A translation receives the builder, its `Target` and the operator's arguments in schema order with defaults
filled in: tensors as `ir.Value`, symbolic scalars as `SymScalar`, everything else as the Python value. It
returns the value (a list for tuples, with None for elements it does not compute) or raises `Untranslatable`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import onnx_ir as ir
import torch

from torchrlopt.ops.builder import GraphBuilder, Result, Untranslatable
from torchrlopt.ops.onnx_types import Dim, Dims, is_static, value_dims
from torchrlopt.torch_private.operators import OpOverload, base_name, schema_of

Translator = Callable[..., Result]

_Function = TypeVar("_Function", bound=Translator)

TABLE: dict[str, Translator] = {}


@dataclasses.dataclass(frozen=True)
class SymScalar:
    """A symbolic scalar argument.

    Attributes:
        value: its 0-d ONNX value.
        dim: its symbolic expression.
    """

    value: ir.Value
    dim: Dim


@dataclasses.dataclass(frozen=True)
class Target:
    """The required result of a translation.

    Attributes:
        node: the fx node.
        types: (dtype, dims) of its result, or of each element of its tuple; None for non-tensors.
        used: indices of the elements that are read.
        dim_values: 0-d int64 values of the symbolic expressions known so far.
    """

    node: torch.fx.Node
    types: tuple[tuple[torch.dtype, Dims] | None, ...]
    used: frozenset[int]
    dim_values: Mapping[Dim, ir.Value]

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the (first) result."""
        return self._first()[0]

    @property
    def dims(self) -> Dims:
        """Dims of the (first) result."""
        return self._first()[1]

    def _first(self) -> tuple[torch.dtype, Dims]:
        known = self.types[0]
        if known is None:
            raise Untranslatable(f"{self.node.name}: the result is no tensor")
        return known

    @property
    def opname(self) -> str:
        """Name of the operator without its overload."""
        return base_name(self.node.target)

    def named(self, *arguments: Any) -> dict[str, Any]:
        """The operator's arguments by name, as the translation receives them."""
        operator = self.node.target
        assert isinstance(operator, OpOverload)
        names = [argument.name for argument in schema_of(operator).arguments]
        return dict(zip(names, arguments, strict=True))

    def need_only(self, *indices: int) -> None:
        """Raises `Untranslatable` if any other element of the tuple is read."""
        if not self.used <= set(indices):
            raise Untranslatable(f"{self.node.name}: outputs {sorted(self.used)} are read")


def translation(*targets: str) -> Callable[[_Function], _Function]:
    """Registers a function for ATen overloads such as `"add.Tensor"`."""

    def register(function: _Function) -> _Function:
        for target in targets:
            if target in TABLE:
                raise ValueError(f"two translations of {target}")
            TABLE[target] = function
        return function

    return register


def require(condition: bool, reason: str) -> None:
    """Raises `Untranslatable` with the reason unless the condition holds."""
    if not condition:
        raise Untranslatable(reason)


def static_int(value: object) -> int:
    """Returns an argument that must be a plain int."""
    if not isinstance(value, int):
        raise Untranslatable(f"{value} is symbolic")
    return value


def shape_value(g: GraphBuilder, target: Target, dims: Dims, *sources: ir.Value) -> ir.Value:
    """Returns a list of dims as a 1-D int64 value: a constant if they are static.

    A symbolic dim is read from one of the source tensors, or from a symbolic scalar of the graph.

    Raises:
        Untranslatable: a symbolic dim cannot be found.
    """
    if is_static(dims):
        return g.ints([dim for dim in dims if isinstance(dim, int)])
    parts: list[ir.Value] = []
    for dim in dims:
        parts.append(g.ints([dim]) if isinstance(dim, int) else _dim_value(g, target, dim, sources))
    if len(parts) == 1:
        return parts[0]
    return g.op("Concat", *parts, dims=(len(parts),), axis=0)


def _dim_value(g: GraphBuilder, target: Target, dim: str, sources: tuple[ir.Value, ...]) -> ir.Value:
    for source in sources:
        dims = value_dims(source)
        if dim in dims:
            axis = dims.index(dim)
            return g.op("Shape", source, dtype=torch.int64, dims=(1,), start=axis, end=axis + 1)
    known = target.dim_values.get(dim)
    if known is None:
        raise Untranslatable(f"the value of the symbolic dim {dim} is not in the graph")
    return g.op("Reshape", known, g.ints([1]), dims=(1,))


def non_negative_axis(axis: int, rank: int) -> int:
    """Returns a non-negative axis; like ATen, treats a 0-d tensor as 1-d."""
    return axis % max(rank, 1)


def non_negative_axes(axes: object, rank: int) -> list[int]:
    """Returns sorted non-negative axes; like ATen's reductions, all of them for None or an empty list."""
    if isinstance(axes, int):
        axes = [axes]
    if not axes or not isinstance(axes, list | tuple):
        return list(range(rank))
    return sorted(non_negative_axis(axis, rank) for axis in axes)


def bind(node: torch.fx.Node, convert: Callable[[Any], Any]) -> list[Any]:
    """Returns an ATen node's arguments in schema order with defaults filled in, each passed to `convert`."""
    target = node.target
    if not isinstance(target, OpOverload):
        raise Untranslatable(f"{node.target} has no schema")
    bound: list[Any] = []
    for index, argument in enumerate(schema_of(target).arguments):
        if index < len(node.args) and not argument.kwarg_only:
            bound.append(convert(node.args[index]))
        elif argument.name in node.kwargs:
            bound.append(convert(node.kwargs[argument.name]))
        else:
            bound.append(argument.default_value)
    return bound
