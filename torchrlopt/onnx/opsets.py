"""Operator sets: domains, and the versions of the standard one that are read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

STANDARD_DOMAINS = ("", "ai.onnx")
"""The domain of the ONNX operators; both names mean the same."""

CORE_DOMAIN = "rlopt"
"""Operators that only the core and our executors implement: the fused ones."""

ATEN_DOMAIN = "rlopt.aten"
"""ATen calls without a translation, kept unchanged."""

OLDEST = 13
"""Oldest opset that is read or lowered to: before it Softmax, Clip, Slice, Pad and others had other forms.

Older files are converted to it first.
"""

OLDEST_CONVERTED = 7
"""Oldest opset that can be converted; before it, attributes controlled broadcasting."""

NATIVE = 23
"""The opset that capture writes; the core's operators have its form and semantics.

Attention and RMSNormalization appear at 23; 24 adds nothing that a PyTorch graph uses.
"""

NEWEST = 28
"""Newest opset that can be read."""

TENSORRT = 22
"""Newest opset that the ONNX parser of TensorRT 10.13 documents; later parsers read it as well."""

FIRST_WITH = {"Swish": 24}
"""Core operators that the standard only has since a version after `NATIVE`."""

IR_VERSION = 10
"""File format version that capture writes."""

OLDEST_IR_VERSION = 4
"""First file format version in which initializers need not be inputs."""

FORM = "opset"
"""Key in the `meta` of a node: the opset whose form it has, if not `NATIVE`."""


def default_opset(proto: onnx.ModelProto) -> int | None:
    """The version of the standard operators that a model imports; None if it imports none."""
    versions = [entry.version for entry in proto.opset_import if entry.domain in STANDARD_DOMAINS]
    return versions[0] if versions else None
