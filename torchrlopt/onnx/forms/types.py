"""Converts element types and shapes between ONNX and the core."""

from __future__ import annotations

import hashlib
import re

import onnx_ir

from torchrlopt import _C

_NAMES: dict[int, str] = {
    onnx_ir.DataType.FLOAT: "f32",
    onnx_ir.DataType.DOUBLE: "f64",
    onnx_ir.DataType.FLOAT16: "f16",
    onnx_ir.DataType.BFLOAT16: "bf16",
    onnx_ir.DataType.INT8: "i8",
    onnx_ir.DataType.INT16: "i16",
    onnx_ir.DataType.INT32: "i32",
    onnx_ir.DataType.INT64: "i64",
    onnx_ir.DataType.UINT8: "u8",
    onnx_ir.DataType.UINT16: "u16",
    onnx_ir.DataType.UINT32: "u32",
    onnx_ir.DataType.UINT64: "u64",
    onnx_ir.DataType.BOOL: "bool",
    onnx_ir.DataType.COMPLEX64: "c64",
    onnx_ir.DataType.COMPLEX128: "c128",
}
_TYPES = {name: onnx_ir.DataType(number) for number, name in _NAMES.items()}

OTHER = "other"
"""Name of every element type the core does not know; such values only pass through opaque nodes."""

NO_NAMES = (None, "", "?")
"""What exporters write for sizes that they do not know: such sizes need not be equal."""

# What the core parses: sums, products and floor divisions of symbols; no powers, no function calls.
_POLYNOMIAL = re.compile(r"(?:[A-Za-z_0-9+\-* ().]|//)+")
_BEYOND = re.compile(r"\*\*|[A-Za-z_0-9]\s*\(")


def dtype_name(dtype: onnx_ir.DataType | int | None) -> str:
    """The core's name of an ONNX element type."""
    return OTHER if dtype is None else _NAMES.get(int(dtype), OTHER)


def dtype_of(name: str) -> onnx_ir.DataType | None:
    """The ONNX element type of the core's name; None for `other`."""
    return _TYPES.get(name)


def core_dim(dim: int | onnx_ir.SymbolicDim) -> int | str | None:
    """A dimension in the core's form: a number, a polynomial, or a symbol that stands for an expression."""
    if isinstance(dim, int):
        return dim
    text = dim.value
    if text in NO_NAMES:
        return None
    text = str(text)
    if _POLYNOMIAL.fullmatch(text) and not _BEYOND.search(text):
        return text
    # Any other expression is an opaque size: equal texts mean equal sizes, nothing else is known.
    return _hashed("expr", text)


def _hashed(prefix: str, text: str) -> str:
    return f"{prefix}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def core_type(value: onnx_ir.Value) -> _C.TensorType:
    """The type that an ONNX value declares; a size without a name gets one that no other size has."""
    if isinstance(value.type, onnx_ir.SequenceType | onnx_ir.OptionalType | onnx_ir.SparseTensorType):
        return OTHER, None
    dtype = dtype_name(value.dtype)
    if value.shape is None:
        return dtype, None
    dims: list[int | str] = []
    for axis, dim in enumerate(value.shape):
        known = core_dim(dim)
        dims.append(_hashed("size", f"{axis} {value.name}") if known is None else known)
    return dtype, dims


def contradicts(declared: _C.TensorType, inferred: _C.TensorType) -> bool:
    """Whether two types contradict each other: a different element type, rank or static size."""
    if OTHER not in (declared[0], inferred[0]) and declared[0] != inferred[0]:
        return True
    if declared[1] is None or inferred[1] is None:
        return False
    if len(declared[1]) != len(inferred[1]):
        return True
    pairs = zip(declared[1], inferred[1], strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
