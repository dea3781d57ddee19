"""Single operators of the core: their inferred types and reference values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrlopt import _C, _tools

Array = NDArray[Any]

_DTYPES = {"float64": "f32", "int64": "i64", "int32": "i32", "uint8": "u8", "int8": "i8", "bool": "bool"}


def read_type(text: str) -> tuple[str, list[int | str]]:
    """`"f32[2,s0]"` as the bindings take it."""
    dtype, _, inside = text.rstrip("]").partition("[")
    return dtype, [int(dim) if dim.isdigit() else dim for dim in inside.split(",") if dim]


def print_type(type_: tuple[str, Sequence[int | str] | None]) -> str:
    """The inverse of `read_type`."""
    dtype, dims = type_
    assert dims is not None
    return f"{dtype}[{','.join(str(dim) for dim in dims)}]"


def build(op: str, types: Sequence[str | None], attrs: dict[str, Any]) -> _C.Graph:
    """A graph of one node whose inputs are called x0, x1, ...; None is an omitted input."""
    builder = _C.GraphBuilder()
    inputs = [
        None if text is None else (builder.add_input(f"x{i}", read_type(text)), 0)
        for i, text in enumerate(types)
    ]
    node = builder.add_node(op, inputs, attrs)
    num_outputs = len(attrs["sizes"]) if op == "Split" else 2 if op == "TopK" else 1
    builder.set_outputs([(node, i) for i in range(num_outputs)], [f"y{i}" for i in range(num_outputs)])
    return builder.finish()


def infer(op: str, *types: str | None, **attrs: Any) -> list[str]:
    """Inferred types of the outputs."""
    graph = build(op, types, attrs)
    return [print_type(graph.type(value)) for value in graph.outputs]


def type_of(array: Array) -> str:
    """float64 stands for f32: the reference computes reals in double precision whatever the dtype."""
    return f"{_DTYPES[str(array.dtype)]}[{','.join(str(size) for size in array.shape)}]"


def evaluate(op: str, *arrays: Array | None, arithmetic: str = "float64", **attrs: Any) -> list[Array]:
    """Reference values of the outputs."""
    graph = build(op, [None if array is None else type_of(array) for array in arrays], attrs)
    inputs = {f"x{i}": array for i, array in enumerate(arrays) if array is not None}
    return _tools.evaluate(graph, inputs, arithmetic)


def assert_equal(actual: Array, expected: Array) -> None:
    """Shape and dtype class exactly; reals within 1e-12 of the largest, NaN where NaN."""
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    if not np.issubdtype(expected.dtype, np.floating):
        np.testing.assert_array_equal(actual, expected)
        return
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected))))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12 * scale)


def random(*shape: int, seed: int = 0) -> Array:
    """Normal numbers."""
    return np.asarray(np.random.default_rng(seed).standard_normal(shape))
