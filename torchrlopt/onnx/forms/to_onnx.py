"""Maps an operator of the core to an ONNX node of opset 23: the inverse of `from_onnx.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir
from numpy.typing import NDArray

from torchrlopt.onnx.forms.from_onnx import CONSTANT_INPUTS, OPERATORS
from torchrlopt.onnx.forms.types import dtype_of


@dataclass(frozen=True)
class OnnxForm:
    """The ONNX form of a core operator.

    Attributes:
        constants: content of the constant inputs, by slot.
        slots: slots of the operator's inputs, in order.
    """

    domain: str
    op_type: str
    attributes: Mapping[str, Any]
    constants: Mapping[int, NDArray[Any]]
    slots: tuple[int, ...]


def onnx_form(
    op: str, attrs: Mapping[str, Any], dtypes: Sequence[str], num_inputs: int, num_outputs: int
) -> OnnxForm:
    """Map an operator of the core, with all attributes and dtypes of its inputs, to a node of opset 23."""
    info = OPERATORS[op]
    given = {key: value for key, value in attrs.items() if info["attrs"][key] != value}
    constants: dict[int, NDArray[Any]] = {}
    for slot, key in CONSTANT_INPUTS.get(op, ()):
        required = info["attrs"][key] is None
        value = attrs.get(key) if required else given.get(key)
        given.pop(key, None)
        if value is not None and not (value == [] and not required):
            constants[slot] = _constant(op, key, value, dtypes)
    if op == "Cast":
        given["to"] = int(dtype_of(attrs["to"]) or 0)
    elif op == "ConstantOfShape":
        dtype = dtype_of(attrs["dtype"])
        given = {
            "value": onnx_ir.tensor(
                np.asarray([attrs["value"]]).astype(np_dtype(attrs["dtype"])), dtype=dtype
            )
        }
    elif op == "Slice" and 4 in constants and 3 not in constants:
        constants[3] = np.arange(len(attrs["starts"]), dtype=np.int64)
    first = min(constants, default=num_inputs)
    if op == "ConstantOfShape":
        slots: tuple[int, ...] = ()
    else:
        slots = tuple(range(num_inputs)) if first >= num_inputs else (0,)
    return OnnxForm(str(info["domain"]), op, given, constants, slots)


def np_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of an element type, by the core's name."""
    dtype = dtype_of(name)
    return np.dtype(dtype.numpy() if dtype is not None else object)


def _constant(op: str, key: str, value: Any, dtypes: Sequence[str]) -> NDArray[Any]:
    """The tensor input that ONNX uses for an attribute of the core."""
    if key in ("min", "max", "value"):
        return np.asarray(value).astype(np_dtype(dtypes[0]))
    if key == "scales":
        return np.asarray(value, dtype=np.float32)
    if op == "TopK":
        return np.asarray([value], dtype=np.int64)
    return np.asarray(value, dtype=np.int64)
