"""Maps an ONNX node to the core's operator, its attributes and inputs.

The core's operators have the names and semantics of ONNX at opset 23, except that constant inputs which
determine a shape (axes, sizes, pads, bounds) are attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir
from numpy.typing import NDArray

from torchrlopt import _C
from torchrlopt.onnx.forms.types import dtype_name, dtype_of

Constants = Callable[[onnx_ir.Value], "NDArray[Any] | None"]
"""Returns the content of a value; None if it is not a constant."""

OPERATORS: Mapping[str, Mapping[str, Any]] = {str(op["name"]): op for op in _C.ops()}
"""The core's operator table by name."""


@dataclass(frozen=True)
class TypedForm:
    """The core form of an ONNX node.

    Attributes:
        op: name of the operator.
        attrs: its attributes; absent ones have their default.
        slots: input slots of the node that are the operator's inputs, in order.
    """

    op: str
    attrs: Mapping[str, Any]
    slots: tuple[int, ...]


class _Opaque(Exception):  # noqa: N818 - not an error: the node stays opaque
    """The core does not have this form of the operator."""


# Constant inputs that are attributes in the core: (slot, attribute), in slot order.
_REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
CONSTANT_INPUTS: Mapping[str, tuple[tuple[int, str], ...]] = {
    "Reshape": ((1, "shape"),),
    "Expand": ((1, "shape"),),
    "Tile": ((1, "repeats"),),
    "Squeeze": ((1, "axes"),),
    "Unsqueeze": ((1, "axes"),),
    "Split": ((1, "sizes"),),
    "Slice": ((1, "starts"), (2, "ends"), (3, "axes"), (4, "steps")),
    "Pad": ((1, "pads"), (2, "value")),
    "Clip": ((1, "min"), (2, "max")),
    "TopK": ((1, "k"),),
    "CumSum": ((1, "axis"),),
    "Trilu": ((1, "k"),),
    "Resize": ((2, "scales"), (3, "sizes")),
    "ConstantOfShape": ((0, "shape"),),
    **{f"Reduce{name}": ((1, "axes"),) for name in _REDUCTIONS},
}

# Attributes that the core does not have and that never affect the first output of the forms that the core
# supports.
_HARMLESS: Mapping[str, frozenset[str]] = {
    "BatchNormalization": frozenset({"momentum"}),
    "MaxPool": frozenset({"storage_order"}),
    "Conv": frozenset({"kernel_shape"}),
    "ConvTranspose": frozenset({"kernel_shape"}),
    "Dropout": frozenset({"ratio", "seed"}),
}
# Attributes that the core does not have: no-ops with this value; with any other value the node is
# opaque.
_HARMLESS_VALUES: Mapping[str, Mapping[str, Any]] = {
    "BatchNormalization": {"training_mode": 0},
    "LayerNormalization": {"stash_type": 1},
    "RMSNormalization": {"stash_type": 1},
    "GroupNormalization": {"stash_type": 1},
    "Cast": {"saturate": 1, "round_mode": "up"},
    "Attention": {"qk_matmul_output_mode": 0},
    "Resize": {"extrapolation_value": 0.0, "keep_aspect_ratio_policy": "stretch"},
}
_SCALARS = frozenset({"k", "axis", "min", "max", "value"})
_WINDOWED = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool"})


def typed_form(node: onnx_ir.Node, constants: Constants) -> TypedForm | None:
    """Map a node of the default domain or of ours to an operator of the core.

    Returns:
        None if the core has no such operator, or not this form of it.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    name = "Identity" if (domain, node.op_type) == ("", "Dropout") else node.op_type
    info = OPERATORS.get(name)
    if info is None or info["domain"] != domain or not info["is_typed"]:
        return None
    try:
        return _typed(node, name, constants)
    except _Opaque:
        return None


def _typed(node: onnx_ir.Node, name: str, constants: Constants) -> TypedForm:
    info = OPERATORS[name]
    attrs: dict[str, Any] = {}
    for key, attribute in node.attributes.items():
        if key in info["attrs"]:
            attrs[key] = _plain(attribute)
        elif not _is_harmless(node, key, _plain(attribute)):
            raise _Opaque
    if node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2] is not None:
        training = constants(node.inputs[2])
        if training is None or bool(training):
            raise _Opaque
    inputs_as_attributes = CONSTANT_INPUTS.get(name, ())
    for slot, key in inputs_as_attributes:
        value = node.inputs[slot] if slot < len(node.inputs) else None
        if value is not None:
            attrs[key] = _content(name, key, value, constants)
    _complete(node, name, attrs, constants)
    taken = {slot for slot, _ in inputs_as_attributes}
    if node.op_type == "Dropout":
        taken = {1, 2}
    elif name == "Resize":
        taken.add(1)  # the region of interest, which only tf_crop_and_resize reads
    elif name == "Pad":
        taken.add(3)
    slots = tuple(slot for slot in range(len(node.inputs)) if slot not in taken)
    while slots and node.inputs[slots[-1]] is None:
        slots = slots[:-1]
    maximum = info["max_inputs"]
    if len(slots) < info["min_inputs"] or (maximum >= 0 and len(slots) > maximum):
        raise _Opaque
    return TypedForm(name, attrs, slots)


def _is_harmless(node: onnx_ir.Node, key: str, value: Any) -> bool:
    if key in _HARMLESS.get(node.op_type, ()):
        return True
    if key in ("auto_pad", "axes", "split", "num_outputs", "noop_with_empty_axes", "dtype", "value"):
        return True  # checked below
    only = _HARMLESS_VALUES.get(node.op_type, {})
    return key in only and bool(value == only[key])


def _complete(node: onnx_ir.Node, name: str, attrs: dict[str, Any], constants: Constants) -> None:
    """Operator-specific steps beyond copying: old forms, defaults that depend on the node."""
    if name in _WINDOWED:
        mode = node.attributes.get_string("auto_pad", "NOTSET")
        if mode != "NOTSET":
            attrs["pads"] = _auto_pads(node, name, mode)
        _canonical_window(attrs)
    keeps_all = node.attributes.get_int("noop_with_empty_axes", 0)
    if name.startswith("Reduce") and not attrs.get("axes") and keeps_all:
        raise _Opaque
    if name in ("ArgMax", "ArgMin", "Shape", "Trilu", "CumSum"):
        return
    if name == "Cast":
        to = dtype_name(attrs["to"])
        source = _input(node, 0).dtype
        if dtype_of(to) is None or (source is not None and dtype_of(dtype_name(source)) is None):
            raise _Opaque
        attrs["to"] = to
    elif name == "Slice":
        count = len(attrs["starts"])
        attrs.setdefault("axes", tuple(range(count)))
    elif name == "Split":
        attrs["sizes"] = _split_sizes(node, attrs)
    elif name == "Pad":
        _pad(node, attrs, constants)
    elif name == "ConstantOfShape":
        _fill(node, attrs)
    elif name == "Resize":
        _resize(node, attrs)
    elif name == "Transpose" and "perm" not in attrs and _input(node, 0).shape is not None:
        attrs["perm"] = tuple(reversed(range(len(_input(node, 0).shape or ()))))
    elif name == "Clip":
        _require_exact_bounds(attrs)


def _input(node: onnx_ir.Node, slot: int) -> onnx_ir.Value:
    value = node.inputs[slot] if slot < len(node.inputs) else None
    if value is None:
        raise _Opaque
    return value


def _content(name: str, key: str, value: onnx_ir.Value, constants: Constants) -> Any:
    content = constants(value)
    if content is None or content.ndim > 1:
        raise _Opaque
    numbers = content.reshape(-1).tolist()
    if key not in _SCALARS:
        return tuple(numbers)
    if len(numbers) != 1:
        raise _Opaque
    if key in ("min", "max", "value"):
        return float(numbers[0])
    return int(numbers[0])


def _plain(attribute: onnx_ir.Attr) -> Any:
    """The value of an attribute in the core's form; float32 numbers by their shortest decimal form."""
    kind, value = attribute.type, attribute.value
    if kind == onnx_ir.AttributeType.FLOAT:
        return _decimal(float(value))
    if kind == onnx_ir.AttributeType.FLOATS:
        return tuple(_decimal(float(number)) for number in value)
    if kind == onnx_ir.AttributeType.INTS:
        return tuple(int(number) for number in value)
    if kind in (onnx_ir.AttributeType.INT, onnx_ir.AttributeType.STRING):
        return value
    return attribute


def _decimal(number: float) -> float:
    """A file stores 1e-05 as float32; it must still be 1e-05 after a round trip."""
    return float(str(np.float32(number))) if float(np.float32(number)) == number else number


def _canonical_window(attrs: dict[str, Any]) -> None:
    """Omits window attributes if all have their defaults, so that equal nodes compare equal."""
    for key, neutral in (("strides", 1), ("dilations", 1), ("pads", 0), ("output_padding", 0)):
        if key in attrs and all(number == neutral for number in attrs[key]):
            del attrs[key]


def _auto_pads(node: onnx_ir.Node, name: str, mode: str) -> tuple[int, ...]:
    if mode == "VALID":
        return ()
    shape = _input(node, 0).shape
    weight = _input(node, 1).shape if name == "Conv" else None
    kernel: Any = node.attributes.get_ints("kernel_shape", None if weight is None else weight[2:])
    if name == "ConvTranspose" or shape is None or kernel is None:
        raise _Opaque
    ones = [1] * len(shape)
    strides, dilations = (node.attributes.get_ints(key, ones) for key in ("strides", "dilations"))
    sizes: list[int] = []
    for axis, size in enumerate(shape[2:]):
        # A stride of 1 keeps every size, so that a free one needs the same padding.
        known = size if isinstance(size, int) else 1 if strides[axis] == 1 else None
        if known is None or not isinstance(kernel[axis], int):
            raise _Opaque
        sizes.append(known)
    return same_pads(sizes, kernel, strides, dilations, mode == "SAME_UPPER")


def same_pads(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], upper: bool
) -> tuple[int, ...]:
    """The pads of auto_pad=SAME: all begins, then all ends; an odd one is at the end if `upper`."""
    halves: list[tuple[int, int]] = []
    for size, width, stride, dilation in zip(sizes, kernel, strides, dilations, strict=False):
        total = max((-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size, 0)
        halves.append((total // 2, total - total // 2) if upper else (total - total // 2, total // 2))
    return (*(begin for begin, _ in halves), *(end for _, end in halves))


def _split_sizes(node: onnx_ir.Node, attrs: Mapping[str, Any]) -> tuple[int, ...]:
    if "sizes" in attrs:
        return tuple(attrs["sizes"])
    shape = _input(node, 0).shape
    total = shape[attrs.get("axis", 0)] if shape is not None else None
    if not isinstance(total, int):
        raise _Opaque
    count = len(node.outputs)
    chunk = -(-total // count)
    return tuple(max(min(chunk, total - chunk * index), 0) for index in range(count))


def _pad(node: onnx_ir.Node, attrs: dict[str, Any], constants: Constants) -> None:
    """Expands pads to every dimension if the node gives them for some axes only."""
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        shape, axes = _input(node, 0).shape, constants(node.inputs[3])
        if shape is None or axes is None:
            raise _Opaque
        rank, given = len(shape), attrs["pads"]
        pads = [0] * (2 * rank)
        for index, axis in enumerate(axes.reshape(-1).tolist()):
            pads[axis % rank] = given[index]
            pads[axis % rank + rank] = given[index + axes.size]
        attrs["pads"] = tuple(pads)


def _fill(node: onnx_ir.Node, attrs: dict[str, Any]) -> None:
    attribute = node.attributes.get("value")
    attrs.pop("value", None)
    if attribute is None:
        return
    tensor = attribute.as_tensor()
    dtype = dtype_name(tensor.dtype)
    if dtype_of(dtype) is None or dtype in ("c64", "c128"):
        raise _Opaque
    number = tensor.numpy().reshape(()).item()
    if isinstance(number, int) and abs(number) >= 2**53:
        raise _Opaque
    attrs["value"], attrs["dtype"] = float(number), dtype


def _resize(node: onnx_ir.Node, attrs: dict[str, Any]) -> None:
    """Sizes or scales for every dimension; forms that the core cannot describe stay opaque."""
    if "axes" in node.attributes or attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise _Opaque
    if attrs.get("sizes"):
        attrs.pop("scales", None)
    elif not attrs.get("scales"):
        raise _Opaque


def _require_exact_bounds(attrs: Mapping[str, Any]) -> None:
    """Bounds are passed as float64, which represents integers exactly only up to 2^53."""
    if any(2**53 <= abs(attrs.get(key, 0.0)) < float("inf") for key in ("min", "max")):
        raise _Opaque
