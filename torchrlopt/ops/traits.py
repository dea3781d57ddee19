"""What operators have in common, where more than one place goes by it.

Of ATen's there are sets of overloads, without `view.dtype`, which reads the bits as other numbers.
Of ONNX's there are sets of names, by the cost classes of the core's table.
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
"""Calls that give the same numbers other sizes."""

VIEWS = (
    RESHAPES
    | _overloads(
        "permute transpose t select slice split split_with_sizes chunk unbind unsqueeze squeeze expand "
        "flatten alias detach"
    )
    | {operator.getitem}
)
"""Calls whose result may share memory with their operand, and elements of what returns several tensors."""

MOVES = VIEWS | _overloads(
    "cat stack clone contiguous constant_pad_nd embedding index index_select gather repeat pixel_shuffle "
    "pixel_unshuffle roll flip"
)
"""Calls that give elements of their operands at other places and round nothing; a pad adds a number."""

PRODUCTS = _overloads("mm addmm bmm baddbmm matmul linear convolution conv1d conv2d conv3d")
"""Products of matrices, and convolutions."""


def _of_classes(*classes: str) -> frozenset[str]:
    return frozenset(name for name, info in OPERATORS.items() if info["cost_class"] in classes)


ONNX_VIEWS = _of_classes("View")
"""Operators of ONNX that give elements of their first operand, and need not move them."""

ONNX_MOVES = _of_classes("View", "Movement") | {"Where"}
"""Operators of ONNX whose results are elements of their operands, or sums of them (of a scatter)."""
