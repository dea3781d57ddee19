"""Operator properties that several modules share.

ATen operators are sets of overloads, excluding `view.dtype`, which reinterprets the bits.
ONNX operators are sets of names, taken from the cost classes of the core's operator table.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from torchrlopt.onnx.forms.from_onnx import OPERATORS
from torchrlopt.torch_private.operators import schema_of

aten = torch.ops.aten


def _overloads(names: str) -> frozenset[Any]:
    packets = [getattr(aten, name) for name in names.split()]
    found = {getattr(packet, overload) for packet in packets for overload in packet.overloads()}
    return frozenset(each for each in found if not schema_of(each).is_mutable) - {aten.view.dtype}


RESHAPES = _overloads("view _unsafe_view reshape")
"""Calls that change the sizes and keep the elements in order."""

VIEWS = (
    RESHAPES
    | _overloads(
        "permute transpose t select slice split split_with_sizes chunk unbind unsqueeze squeeze expand "
        "flatten alias detach"
    )
    | {operator.getitem}
)
"""Calls whose result may alias their operand, including elements of tuple results."""

MOVES = VIEWS | _overloads(
    "cat stack clone contiguous constant_pad_nd embedding index index_select gather repeat pixel_shuffle "
    "pixel_unshuffle roll flip"
)
"""Calls that only rearrange the elements of their operands, without rounding; a pad adds a constant."""

PRODUCTS = _overloads("mm addmm bmm baddbmm matmul linear convolution conv1d conv2d conv3d")
"""Matrix products and convolutions."""


def of_classes(*classes: str) -> frozenset[str]:
    """The ONNX operators of some cost classes of the core's table."""
    return frozenset(name for name, info in OPERATORS.items() if info["cost_class"] in classes)


ONNX_VIEWS = of_classes("View")
"""ONNX operators that return elements of their first operand and need not move them."""

ONNX_MOVES = of_classes("View", "Movement") | {"Where"}
"""ONNX operators whose results are elements of their operands, or sums of them (scatter)."""
