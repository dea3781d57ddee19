"""Operator sets: their domains, and the versions of the standard's that are read and written."""

from __future__ import annotations

STANDARD_DOMAINS = ("", "ai.onnx")
"""The operators of ONNX; both names mean the same."""

CORE_DOMAIN = "rlopt"
"""Operators that only the core and our executors know: the fused ones."""

ATEN_DOMAIN = "rlopt.aten"
"""ATen calls without a translation, kept as they are."""

OLDEST = 13
"""Oldest opset that is read or lowered: before it Softmax, Clip, Slice, Pad and others had other forms."""

NATIVE = 23
"""The opset that capture writes, and whose meaning the core's operators have.

Attention and RMSNormalization appear at 23; 24 adds nothing that a graph of PyTorch uses.
"""

NEWEST = 28
"""Newest opset that is read."""

TENSORRT = 22
"""The newest opset that the ONNX parser of TensorRT 10.13 documents; later parsers read it as well."""

FIRST_WITH = {"Swish": 24}
"""Operators of the core that the standard has only from a version on that is later than `NATIVE`."""

IR_VERSION = 10
"""Version of the file format that is written at least."""
