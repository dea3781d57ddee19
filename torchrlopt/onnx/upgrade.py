"""Files of an opset older than those that are read: `onnx.version_converter` makes them one that is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from torchrlopt.errors import ModelFormatError, UnsupportedError
from torchrlopt.onnx import wire
from torchrlopt.onnx.limited import Limits, run_limited
from torchrlopt.onnx.opsets import OLDEST, OLDEST_CONVERTED, STANDARD_DOMAINS, default_opset
from torchrlopt.onnx.subgraphs import nested
from torchrlopt.onnx.weightless import put_weights_back, without_weights
from torchrlopt.plain_text import escaped

LIMITS = Limits(seconds=30.0, memory_bytes=4 << 30)
"""For the conversion; large models have more time."""

_BYTES_PER_S = 200_000  # of a model without weights: 0.2 s for 200 kB (light_densenet121), 30 s on top

_RESIZE_HAS_MODES = 11  # before, it counted pixels by their corners; by default it counts by centres since

_SCAN_HAS_NO_BATCH = 9  # before, it had; the converter leaves it as it is, and it computes something else

_CHILD = Path(__file__).with_name("upgrade_child.py")


def upgraded(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model of an opset that is read, which computes the same.

    Args:
        proto: a valid model.

    Returns:
        `proto` itself where its opset is read.

    Raises:
        UnsupportedError: the opset is older still, or ONNX cannot convert this model.
    """
    opset = default_opset(proto)
    if opset is None or opset >= OLDEST:
        return proto
    if opset < OLDEST_CONVERTED:
        raise UnsupportedError(
            "the model imports a version of the ONNX operators that is not read",
            expected=f"{OLDEST_CONVERTED} or later",
            got=opset,
        )
    for kind, has_any in (("functions", proto.functions), ("sparse weights", proto.graph.sparse_initializer)):
        if has_any:
            raise UnsupportedError("a model of an old opset has what ONNX does not convert", got=kind)
    has_scan = any(node.op_type == "Scan" for graph in nested(proto.graph) for node in graph.node)
    if opset < _SCAN_HAS_NO_BATCH and has_scan:
        raise UnsupportedError("ONNX does not convert this operator", got=f"Scan of opset {opset}")
    data = without_weights(proto).SerializeToString()
    limits = dataclasses.replace(LIMITS, seconds=LIMITS.seconds + len(data) / _BYTES_PER_S)
    what = f"the conversion from opset {opset} to {OLDEST}"
    answer = run_limited(str(_CHILD), (str(OLDEST),), data, limits, what)
    found = onnx.ModelProto()
    try:
        wire.check_size(answer)
        found.ParseFromString(answer)
    except (DecodeError, ModelFormatError) as error:
        raise UnsupportedError(f"{what} failed", got=str(error)) from escaped(error)
    if default_opset(found) != OLDEST:
        raise UnsupportedError(f"{what} failed", expected=OLDEST, got=default_opset(found))
    if _signature(found) != _signature(proto):
        raise UnsupportedError(f"{what} changed the model's inputs or outputs", got=_signature(found))
    if opset < _RESIZE_HAS_MODES:
        _restore_resizing(found.graph)
    return _completed(found, proto)


def _signature(proto: onnx.ModelProto) -> list[tuple[str, int]]:
    """Names and element types of what goes in and out."""
    graph = proto.graph
    return [(value.name, value.type.tensor_type.elem_type) for value in (*graph.input, *graph.output)]


def _restore_resizing(graph: onnx.GraphProto) -> None:
    """Say of every Resize that it counts pixels as Upsample and the first Resize did.

    The converter leaves that to the default, which is another: outputs were 3 % off.
    """
    for node in (node for each in nested(graph) for node in each.node):
        given = {attribute.name for attribute in node.attribute}
        for name, mode in (("coordinate_transformation_mode", "asymmetric"), ("nearest_mode", "floor")):
            if node.op_type == "Resize" and node.domain in STANDARD_DOMAINS and name not in given:
                node.attribute.append(onnx.helper.make_attribute(name, mode))


def _completed(found: onnx.ModelProto, proto: onnx.ModelProto) -> onnx.ModelProto:
    """With what the converter does not carry over: weights, other domains, who made the model."""
    put_weights_back(found, proto)
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
