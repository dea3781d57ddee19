"""Asks a runtime which operators it has for which types: every kind of node of a model, alone.

Runtimes have no list that could be trusted: which kernels there are depends on version, types and attributes.
So each kind is given to the runtime as a node on its own, all kinds in one model. Where the runtime does not
take that, it is asked for each kind alone. The answers are remembered by the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence

import onnx_ir

from torchrlopt.errors import LoweringError
from torchrlopt.onnx.opsets import ATEN_DOMAIN
from torchrlopt.onnx.standard import standardise
from torchrlopt.onnx.subgraphs import subgraphs

Ask = Callable[[bytes], str | None]
"""Takes a serialised model; gives the runtime's reason against it, None where it takes it.

Raises `LoweringError` where the runtime crashes, hangs or takes all memory."""

_ANSWERS: dict[object, str | None] = {}
_MOST_ANSWERS = 4096


def refused_kinds(
    model: onnx_ir.Model, known: Collection[onnx_ir.Node], title: str, ask: Ask
) -> dict[onnx_ir.Node, str]:
    """The nodes that a runtime has no operator for.

    Args:
        model: not changed.
        known: nodes that need not be asked for.
        title: of the runtime, for people.
        ask: how it is asked.
    """
    opsets = tuple(sorted(model.graph.opset_imports.items()))
    kinds = {
        node: (ask, opsets, _kind(node))
        for node in model.graph
        if node not in known and node.domain != ATEN_DOMAIN and _is_plain(node)
    }
    answers = _answers({kind: node for node, kind in kinds.items()}, model, ask)
    found = {}
    for node, kind in kinds.items():
        reason = answers[kind]
        if isinstance(reason, LoweringError):
            found[node] = str(reason)
        elif reason is not None:
            found[node] = f"{title} has no such operator: {' '.join(reason.split())}"
    return found


def _answers(
    kinds: Mapping[object, onnx_ir.Node], model: onnx_ir.Model, ask: Ask
) -> dict[object, str | LoweringError | None]:
    """The runtime's reason against each kind, None where it takes it; nodes stand for their kinds."""
    found: dict[object, str | LoweringError | None] = {
        kind: _ANSWERS[kind] for kind in kinds if kind in _ANSWERS
    }
    new = {kind: node for kind, node in kinds.items() if kind not in found}
    if not new:
        return found
    if len(_ANSWERS) + len(new) > _MOST_ANSWERS:
        _ANSWERS.clear()
    all_are_taken = False
    if len(new) > 1:
        with contextlib.suppress(LoweringError):  # one by one, then
            all_are_taken = ask(_alone(list(new.values()), model)) is None
    try:
        for kind, node in new.items():
            found[kind] = _ANSWERS[kind] = None if all_are_taken else ask(_alone([node], model))
    except LoweringError as error:
        # The rest is not asked for: what hangs takes all of its time, of each kind again.
        found.update((kind, error) for kind in new if kind not in found)
    return found


def _is_plain(node: onnx_ir.Node) -> bool:
    """Whether the node can be told by the types of its operands, and those are known; constants go along."""
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
    """A model of these nodes and their constants; no node reads what another one gives."""
    parts = [_part(node, model, str(at)) for at, node in enumerate(nodes)]
    view = onnx_ir.GraphView(
        [value for part in parts for value in part.inputs],
        [value for part in parts for value in part.outputs],
        nodes=[node for part in parts for node in part],
        initializers=[value for part in parts for value in part.initializers.values()],
        opset_imports=dict(model.graph.opset_imports),
        name="asked",
    )
    alone = onnx_ir.Model(view.clone(), ir_version=model.ir_version)
    standardise(alone)
    data: bytes = onnx_ir.to_proto(alone).SerializeToString()
    return data


def _part(node: onnx_ir.Node, model: onnx_ir.Model, name: str) -> onnx_ir.Graph:
    """A graph of a node and its constants, with names that no other part has."""
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
