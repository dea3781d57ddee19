"""Malformed models: each is refused with a specific error, without allocating the sizes it claims."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper

from tests.onnx.onnx_text import proto_of
from torchrlopt.errors import ModelFormatError, RlOptError, UnsupportedError
from torchrlopt.onnx import files, safety, wire
from torchrlopt.onnx.reader import read

BODY = """g (float[2] x, bool c) => (float[2] y) <float[2] w = {1,2}> {
  a = Add(x, w)
  b = Relu(a)
  y = If(c) <
    then_branch = one () => (float[2] p) <float[2] v = {3,4}> { p = Mul(b, v) },
    else_branch = two () => (float[2] q) { q = Neg(b) }
  >
}"""

Damage = Callable[[onnx.ModelProto], None]


def write(content: bytes, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(content)
    return path


def refusal(path: Path) -> RlOptError:
    with pytest.raises(RlOptError) as caught:
        read(files.load(path))
    return caught.value


def test_the_model_that_is_damaged_is_sound(tmp_path: Path) -> None:
    assert read(files.load(write(proto_of(BODY).SerializeToString(), tmp_path))).graph.outputs


# ---- bytes


def _nested_type(depth: int) -> bytes:
    """The type of a sequence of sequences of ..."""
    content = b""
    for _ in range(depth):
        content = _field(4, _field(1, content))
    return content


def _nested_graph(depth: int) -> bytes:
    """A node with a graph with a node with ..."""
    content = b""
    for _ in range(depth):
        content = _field(1, _field(5, _field(6, content)))
    return content


def _length(content: bytes) -> bytes:
    size, digits = len(content), b""
    while size > 0x7F:
        digits += bytes([size & 0x7F | 0x80])
        size >>= 7
    return digits + bytes([size])


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _length(content) + content


WHOLE = proto_of(BODY).SerializeToString()
DEEP_GRAPH = _field(7, _nested_graph(40))
DEEP_TYPE = _field(7, _field(11, _field(2, _nested_type(200))))

BYTES: dict[str, bytes] = {
    "empty": b"",
    "text": b"hello",
    "half": WHOLE[: len(WHOLE) // 2],
    "last byte missing": WHOLE[:-1],
    "byte appended": WHOLE + b"\x3a",
    "group without an end": WHOLE + b"\x0b",
    "graph as a number": b"\x08\x0a\x38\x01",
    "length of ten bytes": b"\x3a" + b"\xff" * 10 + b"\x01",
    "length beyond the end": b"\x3a\x7f\x00",
    "name that is no UTF-8": WHOLE.replace(b"\x12\x01g", b"\x12\x01\xff"),
    "type nested 200 deep": WHOLE + DEEP_TYPE,
    "subgraphs nested 40 deep": WHOLE + DEEP_GRAPH,
    "zeros": bytes(1000),
    "another format": b"PK\x03\x04" + bytes(100),
}


@pytest.mark.parametrize("name", BYTES)
def test_files_that_are_no_models(name: str, tmp_path: Path) -> None:
    assert type(refusal(write(BYTES[name], tmp_path))) is ModelFormatError


# ---- messages


def _tensor(name: str = "v2") -> TensorProto:
    return helper.make_tensor(name, TensorProto.FLOAT, [2], [1.0, 2.0])


def _raw(count: int, dims: tuple[int, ...] = (2,), data_type: int = TensorProto.FLOAT) -> TensorProto:
    return TensorProto(name="w2", data_type=data_type, dims=dims, raw_data=bytes(count))


def _with(tensor: TensorProto) -> Damage:
    """A weight that no node reads."""
    return lambda proto: proto.graph.initializer.append(tensor)


def _set(**fields: object) -> Damage:
    """Fields of the first node."""

    def damage(proto: onnx.ModelProto) -> None:
        for name, value in fields.items():
            if isinstance(value, list):
                del getattr(proto.graph.node[0], name)[:]
                getattr(proto.graph.node[0], name).extend(value)
            else:
                setattr(proto.graph.node[0], name, value)

    return damage


def _attribute(*attributes: AttributeProto) -> Damage:
    return lambda proto: proto.graph.node[1].attribute.extend(attributes)


def _subgraph(proto: onnx.ModelProto) -> onnx.GraphProto:
    return proto.graph.node[2].attribute[0].g


def _constant(tensor: TensorProto) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["k"], value=tensor)


def _functions(*bodies: tuple[str, str]) -> Damage:
    """Functions by name, each of one node of the operator given."""

    def damage(proto: onnx.ModelProto) -> None:
        proto.opset_import.add(domain="f", version=1)
        imports = [helper.make_opsetid("", 23), helper.make_opsetid("f", 1)]
        for name, op in bodies:
            node = helper.make_node(op, ["s"], ["t"], domain="f" if op in dict(bodies) else "")
            proto.functions.append(helper.make_function("f", name, ["s"], ["t"], [node], imports))

    return damage


def _in_function(tensor: TensorProto) -> Damage:
    def damage(proto: onnx.ModelProto) -> None:
        proto.opset_import.add(domain="f", version=1)
        imports = [helper.make_opsetid("", 23)]
        nodes = [_constant(tensor), helper.make_node("Add", ["s", "k"], ["t"])]
        proto.functions.append(helper.make_function("f", "F", ["s"], ["t"], nodes, imports))

    return damage


def _in_training(tensor: TensorProto) -> Damage:
    return lambda proto: proto.training_info.add().initialization.initializer.append(tensor)


def _sparse(indices: list[int], size: int = 4) -> Damage:
    def damage(proto: onnx.ModelProto) -> None:
        values = helper.make_tensor("s", TensorProto.FLOAT, [len(indices)], [1.0] * len(indices))
        places = helper.make_tensor("i", TensorProto.INT64, [len(indices)], indices)
        proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [size]))

    return damage


def _declared(proto: onnx.ModelProto, kind: int, dims: list[int]) -> None:
    proto.graph.value_info.append(helper.make_tensor_value_info("b", kind, dims))


def _mistyped(proto: onnx.ModelProto) -> None:
    attribute = helper.make_attribute("alpha", 1.0)
    attribute.type = AttributeProto.INT
    proto.graph.node[1].attribute.append(attribute)


MESSAGES: dict[str, Damage] = {
    "node reads its own output": _set(input=["a", "w"]),
    "cycle of two": _set(input=["b", "w"]),
    "value from nowhere": _set(input=["nowhere", "w"]),
    "value made twice": lambda proto: proto.graph.node.append(proto.graph.node[0]),
    "input given twice": lambda proto: proto.graph.input.append(proto.graph.input[0]),
    "weight given twice": lambda proto: proto.graph.initializer.append(proto.graph.initializer[0]),
    "output that nothing makes": lambda proto: setattr(proto.graph.output[0], "name", "nowhere"),
    "output of a subgraph that nothing makes": lambda p: setattr(_subgraph(p).output[0], "name", "x"),
    "subgraph makes a name of outside": lambda p: _subgraph(p).node[0].output.__setitem__(0, "a"),
    "unknown operator": _set(op_type="NoSuchOperator"),
    "operator without a name": _set(op_type=""),
    "node of nothing": lambda proto: proto.graph.node.append(onnx.NodeProto(op_type="Relu")),
    "too many operands": _set(input=["x", "w", "x"]),
    "unknown attribute": _attribute(helper.make_attribute("nonsense", 1)),
    "attribute given twice": _attribute(*[helper.make_attribute("to", 1)] * 2),
    "attribute of another type than it says": _mistyped,
    "attribute of a function outside of one": _attribute(
        AttributeProto(name="to", type=AttributeProto.INT, ref_attr_name="a")
    ),
    "attribute of a function in place of a subgraph": lambda proto: setattr(
        proto.graph.node[2].attribute[0], "ref_attr_name", "a"
    ),
    "attribute without a name": _attribute(AttributeProto(type=AttributeProto.INT, i=1)),
    "weight of an exabyte": _with(_raw(8, (1 << 60,))),
    "weight of a negative size": _with(_raw(8, (-2,))),
    "weight of negative sizes that cancel": _with(_raw(8, (-1, -2))),
    "weight whose size overflows": _with(_raw(8, (1 << 32, 1 << 32))),
    "weight with too few bytes": _with(_raw(7)),
    "weight with too many bytes": _with(_raw(12)),
    "weight of no elements with bytes": _with(_raw(8, (0,))),
    "weight without data": _with(TensorProto(name="w2", data_type=TensorProto.FLOAT, dims=(2,))),
    "weight with too few numbers": _with(
        TensorProto(name="w2", data_type=TensorProto.FLOAT, dims=(2,), float_data=[1.0])
    ),
    "weight with too many numbers": _with(
        TensorProto(name="w2", data_type=TensorProto.FLOAT, dims=(2,), float_data=[1.0] * 3)
    ),
    "weight with numbers of another type": _with(
        TensorProto(name="w2", data_type=TensorProto.FLOAT, dims=(2,), int32_data=[1, 2])
    ),
    "weight with data twice": _with(
        TensorProto(
            name="w2", data_type=TensorProto.FLOAT, dims=(2,), raw_data=bytes(8), float_data=[1.0, 2.0]
        )
    ),
    "weight without a name": _with(_tensor("")),
    "texts as bytes": _with(_raw(8, data_type=TensorProto.STRING)),
    "too few texts": _with(
        TensorProto(name="w2", data_type=TensorProto.STRING, dims=(2,), string_data=[b"a"])
    ),
    "element type that is none": _with(_raw(8, data_type=9999)),
    "element type undefined": _with(_raw(8, data_type=TensorProto.UNDEFINED)),
    "lying weight of a subgraph": lambda p: _subgraph(p).initializer.append(_raw(12)),
    "lying constant": lambda p: p.graph.node.append(_constant(_raw(12))),
    "lying constant of a function": _in_function(_raw(12)),
    "lying weight of the training": _in_training(_raw(12)),
    "function that calls itself": _functions(("A", "A")),
    "functions that call each other": _functions(("A", "B"), ("B", "A")),
    "function given twice": _functions(("A", "Relu"), ("A", "Neg")),
    "sparse indices out of order": _sparse([2, 1]),
    "sparse index beyond the end": _sparse([9]),
    "no operator set": lambda proto: proto.ClearField("opset_import"),
    "no version of the format": lambda proto: proto.ClearField("ir_version"),
    "version of the format to come": lambda proto: setattr(proto, "ir_version", 999),
    "graph without a name": lambda proto: setattr(proto.graph, "name", ""),
    "no graph": lambda proto: proto.ClearField("graph"),
    "input without a type": lambda proto: proto.graph.input[0].ClearField("type"),
    "value declared of another type": lambda proto: _declared(proto, TensorProto.INT64, [2]),
    "value declared of another rank": lambda proto: _declared(proto, TensorProto.FLOAT, [2, 2]),
    "value declared of another size": lambda proto: _declared(proto, TensorProto.FLOAT, [3]),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_malformed_models(name: str, tmp_path: Path) -> None:
    proto = proto_of(BODY)
    MESSAGES[name](proto)
    assert type(refusal(write(proto.SerializeToString(), tmp_path))) is ModelFormatError


def test_a_negative_size_is_not_known(tmp_path: Path) -> None:
    """As exporters write it that have no other word for it."""
    proto = proto_of("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    graph = read(files.load(write(proto.SerializeToString(), tmp_path))).graph
    dtype, sizes = graph.type((graph.inputs[0], 0))
    assert (dtype, [type(size) for size in sizes]) == ("f32", [str])  # a name of its own


@pytest.mark.parametrize("version", [0, 1, 6, 99, 1 << 40, -1])
def test_operator_sets_that_are_not_read(version: int, tmp_path: Path) -> None:
    proto = proto_of("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    proto.opset_import[0].version = version
    assert type(refusal(write(proto.SerializeToString(), tmp_path))) in (UnsupportedError, ModelFormatError)


def test_a_model_is_a_plain_file(tmp_path: Path) -> None:
    assert type(refusal(tmp_path)) is ModelFormatError
    assert type(refusal(Path("/dev/zero"))) is ModelFormatError


# ---- caps


def test_messages_are_counted_before_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of two bytes takes a hundred in memory: the parser is not asked."""
    monkeypatch.setattr(wire, "MAX_MESSAGES", 10_000)
    monkeypatch.setattr(onnx, "ModelProto", type("Never", (), {"DESCRIPTOR": onnx.ModelProto.DESCRIPTOR}))
    nodes = _field(7, b"\x0a\x00" * 20_000)
    attributes = _field(7, _field(1, b"\x2a\x00" * 20_000))
    types = _field(7, _field(11, _field(2, b"\x0a\x00" * 20_000)))
    for content in (nodes, attributes, types):
        with pytest.raises(ModelFormatError, match="too large"):
            wire.check_size(content)


# What each content takes, in messages, in a file of 40 to 100 kB.
BULKS = {
    "empty operand names": (_field(7, _field(1, b"\x0a\x00" * 20_000)), 10_000),
    "empty output names": (_field(7, _field(1, b"\x12\x00" * 20_000)), 10_000),
    "empty texts of an attribute": (_field(7, _field(1, _field(5, b"\x4a\x00" * 20_000))), 10_000),
    "empty texts of a tensor": (_field(7, _field(5, b"\x32\x00" * 20_000)), 10_000),
    "integers of an attribute, one by one": (_field(7, _field(1, _field(5, b"\x40\x01" * 20_000))), 2_000),
    "floats of an attribute, one by one": (
        _field(7, _field(1, _field(5, b"\x3d\x00\x00\x00\x00" * 20_000))),
        2_000,
    ),
    "dims of a tensor, one by one": (_field(7, _field(5, b"\x08\x01" * 20_000)), 2_000),
    "integers of a tensor, packed": (_field(7, _field(5, _field(7, b"\x01" * 40_000))), 1_217),
    "bytes of a tensor as integers": (_field(7, _field(5, _field(5, b"\x01" * 40_000))), 521),
    "fields that nobody knows": (_field(7, b"\xf8\x07\x01" * 20_000), 10_000),
}


@pytest.mark.parametrize("name", BULKS)
def test_all_that_takes_more_memory_than_bytes_is_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused below the limit that it takes, read at it (with the few messages around it)."""
    content, messages = BULKS[name]
    monkeypatch.setattr(wire, "MAX_MESSAGES", messages - 10)
    with pytest.raises(ModelFormatError, match="too large"):
        wire.check_size(content)
    monkeypatch.setattr(wire, "MAX_MESSAGES", messages + 10)
    wire.check_size(content)


def test_floats_of_a_tensor_take_what_they_take_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_MESSAGES", 10)
    wire.check_size(_field(7, _field(5, _field(4, bytes(40_000)))))  # float_data
    wire.check_size(_field(7, _field(5, _field(10, bytes(40_000)))))  # double_data


def test_what_is_there_once_is_not_given_for_ever() -> None:
    """Nothing is kept of it but the last, so that only the time to read it could bound it."""
    with pytest.raises(ModelFormatError, match="no ONNX model"):
        wire.check_size(b"\x08\x01" * 10_000_000)


def test_bytes_of_weights_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_MESSAGES", 1000)
    proto = proto_of(BODY)
    proto.graph.initializer.append(_raw(1 << 20, (1 << 18,)))
    wire.check_size(proto.SerializeToString())


def test_caps_of_nodes_depth_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(WHOLE, tmp_path)
    monkeypatch.setattr(safety, "MAX_NODES", 4)
    assert "too large" in refusal(path).what  # five, two of them in subgraphs
    monkeypatch.setattr(safety, "MAX_NODES", 5)
    files.load(path)
    monkeypatch.setattr(safety, "MAX_DEPTH", 0)
    assert "too large" in refusal(path).what
    monkeypatch.setattr(safety, "MAX_FILE_BYTES", 10)
    assert "too large" in refusal(path).what
