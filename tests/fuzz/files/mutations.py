"""Mutations of a model: each takes a message and a random source, and changes the message."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx

Mutation = Callable[[onnx.ModelProto, random.Random, Sequence[str]], None]

SIZES = (0, 1, 2, 3, 7, -1, 1 << 31, (1 << 31) - 1, 1 << 62, (1 << 63) - 1, -(1 << 63))
_RATES = (0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, float("inf"), float("-inf"), float("nan"))


def graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The graph and those inside it."""
    waiting = [proto.graph]
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting += [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def value_names(proto: onnx.ModelProto) -> list[str]:
    """Names of all values."""
    graph = proto.graph
    names = [*(i.name for i in graph.input), *(i.name for i in graph.initializer)]
    return [*names, *(name for node in graph.node for name in node.output if name)]


def _rename(proto: onnx.ModelProto, old: str, new: str) -> None:
    """Another name for a value wherever it is meant: the model computes the same."""
    if new in value_names(proto):
        return
    for graph in graphs(proto):
        for node in graph.node:
            for names in (node.input, node.output):
                for at, name in enumerate(names):
                    if name == old:
                        names[at] = new
        for each in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            if each.name == old:
                each.name = new


def rename_value(proto: onnx.ModelProto, draw: random.Random, texts: Sequence[str]) -> None:
    """Another name for any value."""
    _rename(proto, draw.choice(value_names(proto)), draw.choice(texts))


def rename_input(proto: onnx.ModelProto, draw: random.Random, texts: Sequence[str]) -> None:
    """Another name for an input; those came into generated source once."""
    if proto.graph.input:
        _rename(proto, draw.choice(proto.graph.input).name, draw.choice(texts))


def text_fields(message: Any) -> Iterator[Callable[[str], None]]:
    """Setters of every text in a message and in those inside it."""
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None:
            inside = value if field.is_repeated else [value] if message.HasField(field.name) else []
            for each in inside:
                yield from text_fields(each)
        elif field.full_name == "onnx.AttributeProto.s" and value:
            yield lambda text, m=message: setattr(m, "s", text.encode())  # type: ignore[misc]
        elif field.type == field.TYPE_STRING and field.is_repeated:
            for at in range(len(value)):
                yield lambda text, v=value, at=at: v.__setitem__(at, text)  # type: ignore[misc]
        elif field.type == field.TYPE_STRING:
            yield lambda text, m=message, name=field.name: setattr(m, name, text)  # type: ignore[misc]


def set_text(proto: onnx.ModelProto, draw: random.Random, texts: Sequence[str]) -> None:
    """Another text in one place only."""
    draw.choice([*text_fields(proto)])(draw.choice(texts))


def add_metadata(proto: onnx.ModelProto, draw: random.Random, texts: Sequence[str]) -> None:
    """Properties of the model, a node, a graph."""
    node = draw.choice(proto.graph.node)
    message = draw.choice((proto, proto.graph, node))
    message.metadata_props.add(key=draw.choice(texts), value=draw.choice(texts))


def set_size(proto: onnx.ModelProto, draw: random.Random, _: Sequence[str]) -> None:
    """Another size of a value, a weight, or in an attribute."""
    infos = [info for graph in graphs(proto) for info in (*graph.input, *graph.output, *graph.value_info)]
    dims = [dim for info in infos for dim in info.type.tensor_type.shape.dim]
    tensors = [tensor for tensor in proto.graph.initializer if tensor.dims]
    attributes = [a for node in proto.graph.node for a in node.attribute if a.ints]
    kind = draw.choice(
        [name for name, there in (("dim", dims), ("tensor", tensors), ("ints", attributes)) if there]
    )
    if kind == "dim":
        draw.choice(dims).dim_value = draw.choice(SIZES)
    elif kind == "tensor":
        tensor = draw.choice(tensors)
        tensor.dims[draw.randrange(len(tensor.dims))] = draw.choice(SIZES)
    else:
        attribute = draw.choice(attributes)
        attribute.ints[draw.randrange(len(attribute.ints))] = draw.choice(SIZES)


def set_attribute(proto: onnx.ModelProto, draw: random.Random, texts: Sequence[str]) -> None:
    """Another value, another type, one more or one less."""
    node = draw.choice(proto.graph.node)
    if not node.attribute or draw.random() < 0.2:
        node.attribute.add(name=draw.choice(texts), type=onnx.AttributeProto.INT, i=draw.choice(SIZES))
        return
    at = draw.randrange(len(node.attribute))
    attribute = node.attribute[at]
    match draw.randrange(4):
        case 0:
            attribute.i = draw.choice(SIZES)
        case 1:
            attribute.f = draw.choice(_RATES)
        case 2:
            attribute.type = draw.randrange(1, 15)
        case _:
            del node.attribute[at]


def change_nodes(proto: onnx.ModelProto, draw: random.Random, _: Sequence[str]) -> None:
    """A node twice, gone, elsewhere, of another operator; an operand that is another value or none."""
    nodes = proto.graph.node
    at, other = draw.randrange(len(nodes)), draw.randrange(len(nodes))
    match draw.randrange(6):
        case 0:
            nodes.append(nodes[at])
        case 1:
            copy = nodes.add()
            copy.CopyFrom(nodes[at])
            copy.output[:] = [f"{name}_again" for name in copy.output]
        case 2:
            del nodes[at]
        case 3:
            held = onnx.NodeProto()
            held.CopyFrom(nodes[at])
            nodes[at].CopyFrom(nodes[other])
            nodes[other].CopyFrom(held)
        case 4:
            nodes[at].op_type = nodes[other].op_type
        case _:
            if nodes[at].input:
                names = [*value_names(proto), ""]
                nodes[at].input[draw.randrange(len(nodes[at].input))] = draw.choice(names)


def set_opset(proto: onnx.ModelProto, draw: random.Random, _: Sequence[str]) -> None:
    """Another version, no version, two of them."""
    match draw.randrange(4):
        case 0:
            proto.opset_import.add(domain="", version=draw.randrange(1, 30))
        case 1:
            del proto.opset_import[draw.randrange(len(proto.opset_import))]
        case _:
            versions = (*range(1, 27), 0, -1, 1 << 31, 1 << 62)
            draw.choice(proto.opset_import).version = draw.choice(versions)


#: With weights: those that leave a model that computes the same come more often, as more of the code sees it.
MUTATIONS: dict[Mutation, int] = {
    rename_value: 4,
    rename_input: 4,
    set_text: 6,
    add_metadata: 1,
    set_size: 3,
    set_attribute: 3,
    change_nodes: 3,
    set_opset: 2,
}


def mangled(content: bytes, draw: random.Random) -> bytes:
    """The bytes of a text, somewhere in a file, that are no UTF-8 any more: a surrogate, or a lone byte."""
    for _ in range(100):
        at = draw.randrange(len(content) - 3)
        if all(0x61 <= byte <= 0x7A for byte in content[at : at + 3]):
            return content[:at] + draw.choice((b"\xed\xa0\x80", b"a\xffb", b"\xc0\x80a")) + content[at + 3 :]
    return content
