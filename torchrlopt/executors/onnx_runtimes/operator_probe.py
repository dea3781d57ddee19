"""Probes which operators a runtime supports for which types, with each kind of node of a model alone.

Runtimes have no reliable list: which kernels exist depends on version, types and attributes. So the runtime
is given one model with every kind as an isolated node. If it rejects that model, each kind is probed
separately. The process caches the answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence

import onnx_ir

from torchrlopt.errors import LoweringError
from torchrlopt.onnx.opsets import ATEN_DOMAIN
from torchrlopt.onnx.standard import standardise
from torchrlopt.onnx.subgraphs import subgraphs

Probe = Callable[[bytes], str | None]
"""Takes a serialised model; returns the runtime's reason for rejecting it, or None if it accepts it.

Raises `LoweringError` if the runtime crashes, hangs or runs out of memory.
"""

_ANSWERS: dict[object, str | None] = {}
_MOST_ANSWERS = 4096


def refused_kinds(
    model: onnx_ir.Model, known: Collection[onnx_ir.Node], title: str, probe: Probe
) -> dict[onnx_ir.Node, str]:
    """The nodes that a runtime has no operator for.

    Args:
        model: not modified.
        known: nodes that need not be probed.
        title: display name of the runtime.
        probe: how to probe it.
    """
    opsets = tuple(sorted(model.graph.opset_imports.items()))
    kinds = {
        node: (title, opsets, _kind(node))
        for node in model.graph
        if node not in known and node.domain != ATEN_DOMAIN and _is_plain(node)
    }
    answers = _answers({kind: node for node, kind in kinds.items()}, model, probe)
    found = {}
    for node, kind in kinds.items():
        reason = answers[kind]
        if isinstance(reason, LoweringError):
            found[node] = str(reason)
        elif reason is not None:
            found[node] = f"{title} has no such operator: {' '.join(reason.split())}"
    return found


def _answers(
    kinds: Mapping[object, onnx_ir.Node], model: onnx_ir.Model, probe: Probe
) -> dict[object, str | LoweringError | None]:
    """The runtime's reason for rejecting each kind, or None; each kind is represented by a node."""
    found: dict[object, str | LoweringError | None] = {
        kind: _ANSWERS[kind] for kind in kinds if kind in _ANSWERS
    }
    new = {kind: node for kind, node in kinds.items() if kind not in found}
    if not new:
        return found
    if len(_ANSWERS) + len(new) > _MOST_ANSWERS:
        _ANSWERS.clear()
    all_are_supported = False
    if len(new) > 1:
        with contextlib.suppress(LoweringError):  # then one by one
            all_are_supported = probe(_alone(list(new.values()), model)) is None
    try:
        for kind, node in new.items():
            found[kind] = _ANSWERS[kind] = None if all_are_supported else probe(_alone([node], model))
    except LoweringError as error:
        # Do not probe the rest: a runtime that hangs would use up the full timeout for every kind.
        found.update((kind, error) for kind in new if kind not in found)
    return found


def _is_plain(node: onnx_ir.Node) -> bool:
    """Whether operand types identify the kind and are known; constants are included with their readers."""
    if node.op_type == "Constant":
        return False
    values = [value for value in (*node.inputs, *node.outputs) if value is not None and value.name]
    return not subgraphs(node) and all(
        value.dtype is not None and value.shape is not None for value in values
    )


def _kind(node: onnx_ir.Node) -> object:
    attributes = tuple(
        (name, str(attribute.value))
        for name, attribute in sorted(node.attributes.items())
        if attribute.type != onnx_ir.AttributeType.TENSOR
    )
    operands = tuple(
        None if value is None else (value.dtype, len(value.shape or ()), _constant_of(value) is not None)
        for value in node.inputs
    )
    return node.domain, node.op_type, attributes, operands, tuple(value.dtype for value in node.outputs)


def _constant_of(value: onnx_ir.Value) -> onnx_ir.Node | None:
    producer = value.producer()
    return producer if producer is not None and producer.op_type == "Constant" else None


def _alone(nodes: Sequence[onnx_ir.Node], model: onnx_ir.Model) -> bytes:
    """A model of these nodes and their constants; no node reads another one's result."""
    parts = [_part(node, model, str(at)) for at, node in enumerate(nodes)]
    view = onnx_ir.GraphView(
        [value for part in parts for value in part.inputs],
        [value for part in parts for value in part.outputs],
        nodes=[node for part in parts for node in part],
        initializers=[value for part in parts for value in part.initializers.values()],
        opset_imports=dict(model.graph.opset_imports),
        name="probed",
    )
    alone = onnx_ir.Model(view.clone(), ir_version=model.ir_version)
    standardise(alone)
    data: bytes = onnx_ir.to_proto(alone).SerializeToString()
    return data


def _part(node: onnx_ir.Node, model: onnx_ir.Model, name: str) -> onnx_ir.Graph:
    """A graph of a node and its constants, with names unique among the parts."""
    read = list(dict.fromkeys(value for value in node.inputs if value is not None))
    constants = [each for each in map(_constant_of, read) if each is not None]
    initializers = [value for value in read if value.producer() is None and value.const_value is not None]
    given = [value for value in read if _constant_of(value) is None and value not in initializers]
    view = onnx_ir.GraphView(
        given,
        [value for value in node.outputs if value.name],
        nodes=[*dict.fromkeys(constants), node],
        initializers=initializers,
        opset_imports=dict(model.graph.opset_imports),
        name=name,
    )
    part = view.clone()
    inner = [value for each in part for value in each.outputs if value.name]
    for at, value in enumerate([*part.inputs, *part.initializers.values(), *inner]):
        value.name = f"v{name}_{at}"
    for at, each in enumerate(part):
        each.name = f"n{name}_{at}"
    return part
