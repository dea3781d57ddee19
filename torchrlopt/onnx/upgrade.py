"""Upgrades files to a newer opset with `onnx.version_converter`."""

from __future__ import annotations

from pathlib import Path

import onnx

from torchrlopt.errors import ModelFormatError, UnsafePathError, UnsupportedError
from torchrlopt.limited import Limits
from torchrlopt.onnx import safety
from torchrlopt.onnx.answers import answer_of
from torchrlopt.onnx.opsets import OLDEST, OLDEST_CONVERTED, STANDARD_DOMAINS, default_opset
from torchrlopt.onnx.subgraphs import nested
from torchrlopt.onnx.weightless import put_weights_back, without_weights
from torchrlopt.plain_text import escaped

LIMITS = Limits(seconds=30.0, memory_bytes=4 << 30)
"""Limits of the conversion; large models get more time."""

_BYTES_PER_S = 200_000  # of a model without weights: 0.2 s for 200 kB (light_densenet121), plus 30 s

_RESIZE_HAS_MODES = 11  # before, it used asymmetric coordinates; now half-pixel centres are the default

_SCAN_HAS_NO_BATCH = 9  # before, it had a batch axis; the converter ignores this and changes the result

_CHILD = Path(__file__).with_name("child.py")


def upgraded(proto: onnx.ModelProto, path: Path | None = None, target: int = OLDEST) -> onnx.ModelProto:
    """An equivalent of a valid model whose opset is not older than the target.

    Functions become part of the graph: ONNX converts none.

    Returns:
        `proto` itself if its opset is newer, or is the target and there are no functions.

    Raises:
        UnsupportedError: the opset is too old, or ONNX cannot convert this model.
    """
    opset = default_opset(proto)
    if opset is None or opset > target or (opset == target and not proto.functions):
        return proto
    if opset < OLDEST_CONVERTED:
        raise UnsupportedError(
            "the model imports a version of the ONNX operators that is not read",
            expected=f"{OLDEST_CONVERTED} or later",
            got=opset,
        )
    if proto.graph.sparse_initializer:
        raise UnsupportedError("a model of an old opset has what ONNX does not convert", got="sparse weights")
    has_scan = any(node.op_type == "Scan" for graph in nested(proto.graph) for node in graph.node)
    if opset < _SCAN_HAS_NO_BATCH and has_scan:
        raise UnsupportedError("ONNX does not convert this operator", got=f"Scan of opset {opset}")
    data = without_weights(proto).SerializeToString()
    what = f"the conversion from opset {opset} to {target}"
    found = answer_of(_CHILD, (str(target),), data, LIMITS, _BYTES_PER_S, what)
    if default_opset(found) != target:
        raise UnsupportedError(f"{what} failed", expected=target, got=default_opset(found))
    if _signature(found) != _signature(proto):
        raise UnsupportedError(f"{what} changed the model's inputs or outputs", got=_signature(found))
    if opset < _RESIZE_HAS_MODES:
        _restore_resizing(found.graph)
    completed = _completed(found, proto)
    try:
        safety.check(completed, path)  # the process that answered has read an untrusted file
    except (ModelFormatError, UnsafePathError) as error:
        raise UnsupportedError(f"{what} made an invalid model", got=str(error)) from escaped(error)
    return completed


def _signature(proto: onnx.ModelProto) -> list[tuple[str, int]]:
    """Names and element types of inputs and outputs."""
    graph = proto.graph
    return [(value.name, value.type.tensor_type.elem_type) for value in (*graph.input, *graph.output)]


def _restore_resizing(graph: onnx.GraphProto) -> None:
    """Set the coordinate mode of Upsample and of the first Resize on every Resize.

    The converter leaves it at the default, which differs: outputs were 3 % off.
    """
    for node in (node for each in nested(graph) for node in each.node):
        given = {attribute.name for attribute in node.attribute}
        for name, mode in (("coordinate_transformation_mode", "asymmetric"), ("nearest_mode", "floor")):
            if node.op_type == "Resize" and node.domain in STANDARD_DOMAINS and name not in given:
                node.attribute.append(onnx.helper.make_attribute(name, mode))


def _completed(found: onnx.ModelProto, proto: onnx.ModelProto) -> onnx.ModelProto:
    """Restores what the converter drops: weights, free sizes, other domains, metadata of the model."""
    put_weights_back(found, proto)
    for field in ("input", "output"):
        del getattr(found.graph, field)[:]
        getattr(found.graph, field).extend(getattr(proto.graph, field))
    known = {entry.domain for entry in found.opset_import}
    found.opset_import.extend(
        entry for entry in proto.opset_import if entry.domain not in (*known, *STANDARD_DOMAINS)
    )
    found.ir_version = proto.ir_version
    found.domain, found.model_version = proto.domain, proto.model_version
    found.doc_string, found.graph.doc_string = proto.doc_string, proto.graph.doc_string
    del found.metadata_props[:]
    found.metadata_props.extend(proto.metadata_props)
    return found
