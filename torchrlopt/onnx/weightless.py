"""Strips the content of large weights for passes that only need types, and restores it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import onnx

from torchrlopt.onnx.safety import is_external

_MAX_BYTES = 1 << 12  # of weights whose content may determine a shape


def without_weights(proto: onnx.ModelProto, names: Collection[str] | None = None) -> onnx.ModelProto:
    """The model with the types but not the content of its large weights, or of those of some names."""
    small = onnx.ModelProto(
        ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions
    )
    source, graph = proto.graph, small.graph
    graph.name = source.name
    for field in ("node", "input", "output", "value_info"):
        getattr(graph, field).extend(getattr(source, field))
    for tensor in source.initializer:
        is_small = tensor.ByteSize() <= _MAX_BYTES or (names is not None and tensor.name not in names)
        if is_small and not is_external(tensor):
            graph.initializer.append(tensor)
        else:
            graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    return small


def put_weights_back(small: onnx.ModelProto, proto: onnx.ModelProto) -> None:
    """Restore, in place, the content of the weights of `proto` that `without_weights` has emptied."""
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    for tensor in small.graph.initializer:
        if tensor.name in weights and not has_content(tensor):
            tensor.CopyFrom(weights[tensor.name])


def has_content(tensor: Any) -> bool:
    """Whether a tensor's message holds more than its name and type."""
    return any(field.name not in ("name", "data_type", "dims") for field, _ in tensor.ListFields())
