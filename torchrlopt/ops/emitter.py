"""The FX graph under construction, and what is known about its values.

Every emitted node carries `meta["val"]`, a fake tensor (or int) with dtype, shape and strides, so that
converters decide on exact types and never guess. If the shape depends on data there is no fake value, and the
type declared in the ONNX model is used instead.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from torchrlopt.errors import LoweringError
from torchrlopt.torch_private.modes import enable_python_dispatcher
from torchrlopt.torch_private.pytree import tree_leaves
from torchrlopt.torch_private.tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    has_symbolic_sizes,
)

aten = torch.ops.aten

SymInt = int | fx.Node
"""An integer in the graph: a number, or a node that yields one at run time."""

_NOTHING = contextlib.nullcontext()

_MAX_CONSTANT_INTS = 4096  # longest constant that is read as a list of sizes, axes or indices


class Ints:
    """An int64 tensor of rank 0 or 1 whose elements are known individually, as in shape arithmetic.

    Attributes:
        elements: the content; one element for rank 0.
        rank: 0 or 1.
    """

    __slots__ = ("elements", "rank")

    def __init__(self, elements: Sequence[SymInt], rank: int) -> None:
        self.elements = tuple(elements)
        self.rank = rank


Entry = fx.Node | torch.Tensor | Ints
"""Represents an ONNX value: a node, a constant, or known integers."""


class Emitter:
    """Adds ATen calls to an FX graph.

    Args:
        fake_mode: mode that created the fake values of the placeholders.
        device: device of the constants.
    """

    def __init__(self, fake_mode: FakeTensorMode, device: torch.device) -> None:
        self.graph = fx.Graph()
        self.fake_mode = fake_mode
        self.device = device
        self.attributes: dict[str, torch.Tensor] = {}
        self.submodules: dict[str, torch.nn.Module] = {}
        self._num_sizes = itertools.count()
        self._attribute_nodes: dict[int, fx.Node] = {}
        self._sizes: dict[tuple[fx.Node, int], fx.Node] = {}
        self._results: dict[Any, Any] = {}

    # ---- emitting

    def op(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """Add a call of an ATen overload, or of `operator` on ints, and compute its fake result."""
        node = self.graph.call_function(target, args, kwargs)
        self.refresh(node)
        return node

    def refresh(self, node: fx.Node) -> None:
        """Compute `node.meta["val"]` from the fake values of its arguments; leave it absent if that fails."""
        known = True

        def fake(argument: fx.Node) -> Any:
            nonlocal known
            known = known and "val" in argument.meta
            return argument.meta.get("val")

        args = fx.map_arg(node.args, fake)
        kwargs = fx.map_arg(node.kwargs, fake)
        if not known or not callable(node.target):
            return
        # Repeated blocks repeat their types: a cache hit is a hundred times faster than a fake call.
        key = _type_key((node.target, args, tuple(kwargs.items())))
        if key is not None and key in self._results:
            node.meta["val"] = self._results[key]
            return
        try:
            # C++ composite operators need concrete numbers; given symbols they fail or lose them
            # (constant_pad_nd). The Python decompositions handle symbols but are slower.
            with self.fake(), enable_python_dispatcher() if _has_symbols(args, kwargs) else _NOTHING:
                node.meta["val"] = node.target(*args, **kwargs)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            if _is_data_dependent(error):
                return
            raise LoweringError(
                f"arguments do not fit {node.target}", where=node.name, got=str(error).splitlines()[0]
            ) from error
        if key is not None:
            self._results[key] = node.meta["val"]

    @contextlib.contextmanager
    def fake(self) -> Iterator[None]:
        """Run on fake tensors without leaving guards in the shape environment of the user's compile."""
        shape_env = self.fake_mode.shape_env
        quiet = shape_env.suppress_guards() if shape_env is not None else contextlib.nullcontext()
        with quiet, self.fake_mode:
            yield

    def item(self, node: fx.Node, index: int) -> fx.Node:
        """Element `index` of a node that returns a tuple or list."""
        return self.op(operator.getitem, node, index)

    def constant(self, tensor: torch.Tensor) -> fx.Node:
        """A node for a known tensor; the same tensor always gives the same node."""
        node = self._attribute_nodes.get(id(tensor))
        if node is None:
            name = f"constant_{len(self.attributes)}"
            held = self.attributes[name] = tensor.detach().to(self.device)
            node = self.graph.create_node("get_attr", name)
            key = _type_key(held)
            if key not in self._results:
                with self.fake():
                    self._results[key] = torch.empty_strided(
                        held.shape, held.stride(), dtype=held.dtype, device=held.device
                    )
            node.meta["val"] = self._results[key]
            self._attribute_nodes[id(tensor)] = node
            # Keep the tensor alive so that its id stays unique.
            node.meta["tensor"] = tensor
        return node

    def submodule(self, module: torch.nn.Module) -> fx.Node:
        """A node for a graph that is an argument of a control-flow call."""
        name = f"submodule_{len(self.submodules)}"
        self.submodules[name] = module
        return self.graph.create_node("get_attr", name)

    def scalar(self, value: float, dtype: torch.dtype) -> fx.Node:
        """A 0-d constant."""
        return self.constant(torch.tensor(value, dtype=dtype))

    def tensor(self, entry: Entry) -> fx.Node:
        """The node that yields the tensor of an entry."""
        if isinstance(entry, fx.Node):
            if not isinstance(entry.meta.get("val"), int | torch.SymInt):
                return entry
            # The original computes this size as a number; here it is used as a tensor.
            return self.op(aten.scalar_tensor.default, entry, dtype=torch.int64, device=self.device)
        if isinstance(entry, torch.Tensor):
            return self.constant(entry)
        if all(isinstance(element, int) for element in entry.elements):
            content = list(entry.elements) if entry.rank else entry.elements[0]
            return self.constant(torch.tensor(content, dtype=torch.int64))
        scalars = [
            self.op(aten.scalar_tensor.default, element, dtype=torch.int64, device=self.device)
            for element in entry.elements
        ]
        return self.op(aten.stack.default, scalars) if entry.rank else scalars[0]

    def cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        """Cast `node` to `dtype`; a no-op if it already has it."""
        if self.dtype(node) == dtype:
            return node
        return self.op(aten._to_copy.default, node, dtype=dtype)

    def next_size(self) -> str:
        """A fresh name for an unknown size, unique in this graph."""
        return f"size_{next(self._num_sizes)}"

    # ---- what is known

    def fake_of(self, node: fx.Node) -> torch.Tensor:
        """The fake tensor of a node.

        Raises:
            LoweringError: its type is unknown at graph construction.
        """
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            raise LoweringError(
                "the type of a value is not known when the graph is built",
                where=node.name,
                todo="give the model static shapes",
            )
        return value

    def dtype(self, node: fx.Node) -> torch.dtype:
        """Element type of a node's tensor."""
        return self.fake_of(node).dtype

    def rank(self, node: fx.Node) -> int:
        """Number of dimensions of a node's tensor."""
        return self.fake_of(node).dim()

    def dim(self, node: fx.Node, index: int) -> SymInt:
        """Size of dimension `index` (negative: from the end): an int, or a node if it is symbolic."""
        fake = self.fake_of(node)
        index = normal_axis(index, fake.dim())
        size = fake.shape[index]
        if isinstance(size, int):
            return size
        key = (node, index)
        if key not in self._sizes:
            self._sizes[key] = self.op(aten.sym_size.int, node, index)
        return self._sizes[key]

    def shape(self, node: fx.Node) -> list[SymInt]:
        """Sizes of all dimensions."""
        return [self.dim(node, index) for index in range(self.rank(node))]

    def static_dim(self, node: fx.Node, index: int) -> int:
        """Size of a dimension that must be a number.

        Raises:
            LoweringError: it is symbolic.
        """
        size = self.dim(node, index)
        if not isinstance(size, int):
            raise LoweringError(
                "a dimension must be static", where=f"{node.name}, dimension {index}", got=size
            )
        return size

    def ints(self, entry: Entry) -> list[SymInt]:
        """The elements of an integer tensor of rank 0 or 1; those that are not known are read at run time."""
        known = self.known_ints(entry)
        if known is not None:
            return list(known.elements)
        node = self.tensor(entry)
        if self.rank(node) == 0:
            return [self.item_of(node)]
        length = self.static_dim(node, 0)
        return [self.item_of(self.op(aten.select.int, node, 0, index)) for index in range(length)]

    def item_of(self, node: fx.Node) -> fx.Node:
        """The number in a one-element tensor, read at run time; nothing is known about it earlier."""
        return self.graph.call_function(aten._local_scalar_dense.default, (node,))

    def known_ints(self, entry: Entry) -> Ints | None:
        """The elements of an integer tensor of rank 0 or 1 if they are known now, else None."""
        if isinstance(entry, Ints):
            return entry
        if isinstance(entry, fx.Node) and isinstance(entry.meta.get("val"), int | torch.SymInt):
            return Ints([entry], 0)  # a size that the original computes as a number
        if not isinstance(entry, torch.Tensor) or entry.dtype not in (torch.int64, torch.int32):
            return None
        if entry.dim() > 1 or entry.numel() > _MAX_CONSTANT_INTS:
            return None
        return Ints([int(number) for number in entry.reshape(-1).tolist()], entry.dim())

    def const_ints(self, entry: Entry, what: str) -> list[int]:
        """The elements of an integer tensor, all of which must be known now.

        Raises:
            LoweringError: an element is only known at run time.
        """
        known = self.known_ints(entry)
        numbers = [e for e in known.elements if isinstance(e, int)] if known is not None else []
        if known is None or len(numbers) != len(known.elements):
            raise LoweringError(f"{what} must be constant")
        return numbers

    # ---- integers

    def add(self, a: SymInt, b: SymInt) -> SymInt:
        """The sum."""
        return a + b if isinstance(a, int) and isinstance(b, int) else self.op(operator.add, a, b)

    def sub(self, a: SymInt, b: SymInt) -> SymInt:
        """The difference."""
        return a - b if isinstance(a, int) and isinstance(b, int) else self.op(operator.sub, a, b)

    def mul(self, a: SymInt, b: SymInt) -> SymInt:
        """The product."""
        if a == 1:
            return b
        if b == 1:
            return a
        return a * b if isinstance(a, int) and isinstance(b, int) else self.op(operator.mul, a, b)

    def floordiv(self, a: SymInt, b: SymInt) -> SymInt:
        """The quotient, rounded down."""
        return a // b if isinstance(a, int) and isinstance(b, int) else self.op(operator.floordiv, a, b)

    def prod(self, factors: Sequence[SymInt]) -> SymInt:
        """Product of all factors."""
        result: SymInt = 1
        for factor in factors:
            result = self.mul(result, factor)
        return result


def normal_axis(axis: int, rank: int) -> int:
    """Normalises a possibly negative `axis`.

    Raises:
        LoweringError: it is out of range.
    """
    if not -rank <= axis < max(rank, 1):
        raise LoweringError("axis out of range", expected=f"-{rank} to {rank - 1}", got=axis)
    return axis + rank if axis < 0 else axis


def _type_key(value: Any) -> Any:
    """A key that is equal for arguments of equal types and equal numbers; None if a size is symbolic."""
    if isinstance(value, torch.Tensor):
        sizes = (*value.shape, *value.stride(), value.storage_offset())
        if not all(isinstance(size, int) for size in sizes):
            return None
        return value.dtype, value.device, tuple(value.shape), value.stride(), value.storage_offset()
    if isinstance(value, list | tuple):
        keys = [_type_key(item) for item in value]
        return None if None in keys else (len(keys), *keys)
    if value is None or isinstance(value, str | torch.dtype | torch.device) or callable(value):
        return type(value), value
    # 1, 1.0 and True compare equal but give different types.
    return (type(value), value) if isinstance(value, bool | int | float) else None


def _has_symbols(args: Any, kwargs: Any) -> bool:
    """Whether the fake arguments of a call contain symbolic sizes or numbers."""
    return any(
        isinstance(each, torch.SymInt) or (isinstance(each, FakeTensor) and has_symbolic_sizes(each))
        for each in tree_leaves((args, kwargs))
    )


def _is_data_dependent(error: BaseException) -> bool:
    """Whether computing a fake result failed only because it depends on a tensor's content."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    kinds = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
    return isinstance(error, kinds)
