"""Types of ONNX values, derived from the fake tensors of the FX graph: element type and (symbolic) dims.

Dims are plain Python: an `int`, or the text of a symbolic expression such as `"2*s0"`. A shape can therefore
be compared, hashed and used as a dictionary key.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from torchrlopt.errors import CaptureError, LoweringError
from torchrlopt.torch_private.operators import OpOverload, schema_of
from torchrlopt.torch_private.tensors import dim_of

Dim = int | str
Dims = tuple[Dim, ...]

DTYPES: dict[torch.dtype, ir.DataType] = {
    torch.float32: ir.DataType.FLOAT,
    torch.float64: ir.DataType.DOUBLE,
    torch.float16: ir.DataType.FLOAT16,
    torch.bfloat16: ir.DataType.BFLOAT16,
    torch.int64: ir.DataType.INT64,
    torch.int32: ir.DataType.INT32,
    torch.int16: ir.DataType.INT16,
    torch.int8: ir.DataType.INT8,
    torch.uint8: ir.DataType.UINT8,
    torch.uint16: ir.DataType.UINT16,
    torch.uint32: ir.DataType.UINT32,
    torch.uint64: ir.DataType.UINT64,
    torch.bool: ir.DataType.BOOL,
    torch.complex64: ir.DataType.COMPLEX64,
    torch.complex128: ir.DataType.COMPLEX128,
    torch.float8_e4m3fn: ir.DataType.FLOAT8E4M3FN,
    torch.float8_e4m3fnuz: ir.DataType.FLOAT8E4M3FNUZ,
    torch.float8_e5m2: ir.DataType.FLOAT8E5M2,
    torch.float8_e5m2fnuz: ir.DataType.FLOAT8E5M2FNUZ,
}
TORCH_DTYPES: dict[ir.DataType, torch.dtype] = {onnx: dtype for dtype, onnx in DTYPES.items()}

UNSIGNED_WIDE = frozenset({torch.uint16, torch.uint32, torch.uint64})
"""Dtypes that torch can store and convert but has hardly any kernels for."""

# 0-d values of these types represent the traced program's non-tensor scalars.
_SCALAR_DTYPES: tuple[tuple[tuple[type, ...], torch.dtype], ...] = (
    ((bool, torch.SymBool), torch.bool),
    ((int, torch.SymInt), torch.int64),
    ((float, torch.SymFloat), torch.float64),
)


def onnx_dtype(dtype: torch.dtype) -> ir.DataType:
    """Returns the ONNX element type of a torch dtype.

    Raises:
        CaptureError: the dtype (a quantised one) has no ONNX type.
    """
    found = DTYPES.get(dtype)
    if found is None:
        raise CaptureError("a tensor has a dtype that ONNX cannot name", got=dtype, is_bug=False)
    return found


def torch_dtype(dtype: ir.DataType | int | None) -> torch.dtype:
    """Returns the torch dtype of an ONNX element type that torch can compute in.

    Raises:
        LoweringError: torch has no kernels for it (string, sub-byte and 8-bit floating types, complex).
    """
    found = None if dtype is None else TORCH_DTYPES.get(ir.DataType(int(dtype)))
    if found is None or found.is_complex or (found.is_floating_point and found.itemsize == 1):
        name = ir.DataType(int(dtype)).name if dtype is not None else "no element type"
        raise LoweringError("element type has no kernels in torch", got=name, is_bug=False)
    return found


def tensor_of(value: ir.TensorProtocol) -> torch.Tensor:
    """Returns a torch tensor with the content of an ONNX tensor.

    Raises:
        LoweringError: the element type has no torch dtype.
    """
    dtype = torch_dtype(value.dtype)
    shape = list(value.shape.numpy())
    data = bytearray(value.tobytes())
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def dims_of(tensor: torch.Tensor) -> Dims:
    """Returns the dims of a (fake) tensor."""
    return tuple(dim_of(size) for size in tensor.shape)


def value_dims(value: ir.Value) -> Dims:
    """Returns the dims of a typed ONNX value.

    Raises:
        CaptureError: the value has no shape.
    """
    if value.shape is None:
        raise CaptureError("an ONNX value has no shape", where=str(value.name))
    return tuple(dim if isinstance(dim, int) else str(dim.value) for dim in value.shape)


def value_dtype(value: ir.Value) -> torch.dtype:
    """Returns the torch dtype of a typed ONNX value.

    Raises:
        CaptureError: the value has no element type.
    """
    if value.dtype is None:
        raise CaptureError("an ONNX value has no element type", where=str(value.name))
    return TORCH_DTYPES[value.dtype]


def set_type(value: ir.Value, dtype: torch.dtype, dims: Dims) -> None:
    """Sets the type of an ONNX value."""
    value.type = ir.TensorType(onnx_dtype(dtype))
    value.shape = ir.Shape(dims)


def type_of_meta(meta: object) -> tuple[torch.dtype, Dims] | None:
    """Returns dtype and dims of an fx node's `meta["val"]`; None if it is neither a tensor nor a scalar."""
    if isinstance(meta, torch.Tensor):
        return meta.dtype, dims_of(meta)
    return next(((dtype, ()) for types, dtype in _SCALAR_DTYPES if isinstance(meta, types)), None)


def broadcast(*shapes: Dims) -> Dims:
    """Returns the dims of an elementwise result of operands with these dims.

    Two different symbolic dims only meet if they are known to be equal; the first one is kept.
    """
    rank = max((len(dims) for dims in shapes), default=0)
    result: list[Dim] = [1] * rank
    for dims in shapes:
        for axis, dim in enumerate(dims, start=rank - len(dims)):
            kept = result[axis]
            if kept == 1 or (isinstance(kept, str) and isinstance(dim, int) and dim != 1):
                result[axis] = dim
    return tuple(result)


def is_static(sizes: Sequence[object]) -> bool:
    """Returns whether all sizes are numbers."""
    return all(isinstance(size, int) for size in sizes)


def reshape_target(source: Dims, target: Dims) -> list[int] | None:
    """Returns the constant shape input of a Reshape from `source` to `target` dims.

    A symbolic dim becomes 0 (copy) if the input has the same dim at the same position; at most one other
    becomes -1 (inferred). Returns None if no such constant exists.
    """
    if is_static(target):
        return [dim for dim in target if isinstance(dim, int)]
    static_sizes = [dim for dim in target if isinstance(dim, int)]
    # A zero size means "copy" in a Reshape with copied dims, and makes -1 ambiguous.
    if 0 in static_sizes:
        return None
    result: list[int] = []
    num_inferred = 0
    for axis, dim in enumerate(target):
        if isinstance(dim, int):
            result.append(dim)
        elif axis < len(source) and source[axis] == dim:
            result.append(0)
        else:
            result.append(-1)
            num_inferred += 1
    return result if num_inferred <= 1 else None


def meta_of(node: torch.fx.Node) -> Any:
    """Returns a node's result as the tracer recorded it: fake tensor, symbolic scalar, or a tuple of them.

    Raises:
        CaptureError: nothing was recorded; the graph does not come from AOTAutograd.
    """
    if "val" not in node.meta:
        raise CaptureError(
            "an fx node carries no fake value",
            where=node.name,
            expected='meta["val"], as AOTAutograd records it',
            todo="capture the graph that aot_autograd hands to its inference compiler",
        )
    return node.meta["val"]


@functools.cache
def is_view(target: object) -> bool:
    """Returns whether an ATen overload returns a view of an input."""
    if not isinstance(target, OpOverload):
        return target is operator.getitem
    return any(result.alias_info is not None for result in schema_of(target).returns)
