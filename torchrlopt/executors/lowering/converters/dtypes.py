"""Element types of ONNX as torch dtypes."""

from __future__ import annotations

import onnx_ir
import torch

from torchrlopt.errors import LoweringError

_TORCH_DTYPES: dict[int, torch.dtype] = {
    onnx_ir.DataType.FLOAT: torch.float32,
    onnx_ir.DataType.DOUBLE: torch.float64,
    onnx_ir.DataType.FLOAT16: torch.float16,
    onnx_ir.DataType.BFLOAT16: torch.bfloat16,
    onnx_ir.DataType.INT8: torch.int8,
    onnx_ir.DataType.INT16: torch.int16,
    onnx_ir.DataType.INT32: torch.int32,
    onnx_ir.DataType.INT64: torch.int64,
    onnx_ir.DataType.UINT8: torch.uint8,
    onnx_ir.DataType.UINT16: torch.uint16,
    onnx_ir.DataType.UINT32: torch.uint32,
    onnx_ir.DataType.UINT64: torch.uint64,
    onnx_ir.DataType.BOOL: torch.bool,
}

UNSIGNED_WIDE = frozenset({torch.uint16, torch.uint32, torch.uint64})
"""Dtypes for which torch has storage and conversions but hardly any kernels."""


def torch_dtype(dtype: onnx_ir.DataType | int | None) -> torch.dtype:
    """The torch dtype of an ONNX element type.

    Raises:
        LoweringError: torch has no kernels for it (string, sub-byte and 8-bit floating types, complex).
    """
    found = _TORCH_DTYPES.get(int(dtype)) if dtype is not None else None
    if found is None:
        name = onnx_ir.DataType(int(dtype)).name if dtype is not None else "no element type"
        raise LoweringError("element type has no kernels in torch", got=name, is_bug=False)
    return found


def tensor_of(value: onnx_ir.TensorProtocol) -> torch.Tensor:
    """A torch tensor with the content of an ONNX tensor.

    Raises:
        LoweringError: the element type has no torch dtype.
    """
    dtype = torch_dtype(value.dtype)
    shape = list(value.shape.numpy())
    data = bytearray(value.tobytes())
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)
