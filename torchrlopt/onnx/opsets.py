"""Operator sets: their domains, and the versions of the standard's that are read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

STANDARD_DOMAINS = ("", "ai.onnx")
"""The operators of ONNX; both names mean the same."""

CORE_DOMAIN = "rlopt"
"""Operators that only the core and our executors know: the fused ones."""

ATEN_DOMAIN = "rlopt.aten"
"""ATen calls without a translation, kept as they are."""

OLDEST = 13
"""Oldest opset that is read or lowered: before it Softmax, Clip, Slice, Pad and others had other forms.

Files of older ones are converted to it first.
"""

OLDEST_CONVERTED = 7
"""Oldest opset that is converted; before it, broadcasting was given by attributes."""

NATIVE = 23
"""The opset that capture writes, and whose form and meaning the core's operators have.

Attention and RMSNormalization appear at 23; 24 adds nothing that a graph of PyTorch uses.
"""

NEWEST = 28
"""Newest opset that is read."""

TENSORRT = 22
"""The newest opset that the ONNX parser of TensorRT 10.13 documents; later parsers read it as well."""

FIRST_WITH = {"Swish": 24}
"""Operators of the core that the standard has only from a version on that is later than `NATIVE`."""

IR_VERSION = 10
"""Version of the file format that capture writes."""

OLDEST_IR_VERSION = 4
"""First version of the file format in which an initializer need not be an input."""

FORM = "opset"
"""In `meta` of a node: the opset whose form it has, where that is not `NATIVE`."""


def default_opset(proto: onnx.ModelProto) -> int | None:
    """The version of the standard operators that a model imports; None where it imports none."""
    versions = [entry.version for entry in proto.opset_import if entry.domain in STANDARD_DOMAINS]
    return versions[0] if versions else None
