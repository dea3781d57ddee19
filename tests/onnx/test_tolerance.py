"""Files that break the standard in ways that runtimes tolerate are repaired; others are refused."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.onnx.onnx_text import proto_of
from torchrlopt.errors import ModelFormatError, UnsupportedError
from torchrlopt.onnx.files import checked, load, prepared, repaired

CHAIN = """g (float[2] x, bool c) => (float[2] z) {
  a = Relu(x)
  b = If(c) <then_branch = one () => (float[2] p) { p = Neg(a) },
             else_branch = two () => (float[2] q) { r = Abs(a) q = Neg(r) }>
  z = Neg(b)
}"""


def reversed_nodes(holder: onnx.GraphProto) -> None:
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(holder.node)]
    del holder.node[:]
    holder.node.extend(nodes)


def test_nodes_out_of_order_are_sorted() -> None:
    """Also those of bodies; what a body reads counts as read by its node."""
    expected, proto = proto_of(CHAIN), proto_of(CHAIN)
    reversed_nodes(proto.graph)
    for attribute in proto.graph.node[1].attribute:
        reversed_nodes(attribute.g)
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(proto)
    assert checked(proto).graph == expected.graph


def test_sorted_nodes_stay_as_they_are() -> None:
    proto = proto_of("g (float[2] x) => (float[2] z, float[2] a) { z = Neg(x) a = Relu(x) }")
    assert repaired(proto) == proto


def test_a_cycle_is_refused() -> None:
    proto = proto_of("g (float[2] x) => (float[2] z) { a = Add(x, x) b = Neg(a) z = Neg(b) }")
    proto.graph.node[0].input[1] = "b"
    with pytest.raises(ModelFormatError, match="topologically sorted"):
        prepared(proto)


def test_a_domain_that_is_not_imported() -> None:
    """Contrib operators of ONNX Runtime mostly come so."""
    proto = proto_of("g (float[2] x) => (float[2] z) { z = Relu(x) }")
    proto.graph.node[0].domain = "com.microsoft"
    assert prepared(proto).graph.opset_imports["com.microsoft"] == 1


def test_weights_that_are_no_inputs_in_a_file_of_format_3(tmp_path: Path) -> None:
    """With weights beside the file, which the checker does not find in memory."""
    proto = proto_of("g (float[2000] x) => (float[2000] z) { z = Mul(x, w) }", opset=13)
    proto.ir_version = 3
    weight = proto.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[2000])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    (tmp_path / "w.bin").write_bytes(bytes(8000))
    (tmp_path / "a.onnx").write_bytes(proto.SerializeToString())
    model = load(tmp_path / "a.onnx")
    assert model.ir_version == 4
    assert not model.graph.initializers["w"].const_value.numpy().any()


def test_standard_operators_of_no_version() -> None:
    """Runtimes take their newest; which meaning that has changes from one to the next."""
    proto = proto_of("g (float[2] x) => (float[2] z) { z = Relu(x) }", imports=', "my" : 1')
    del proto.opset_import[0]
    with pytest.raises(UnsupportedError, match="which version"):
        prepared(proto)
    del proto.opset_import[:]
    with pytest.raises(ModelFormatError):
        prepared(proto)


def test_what_onnx_ir_has_not_is_no_fault_of_the_file() -> None:
    """A classifier's output of dictionaries."""
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    )
    node = helper.make_node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])
    graph = helper.make_graph([node], "g", [x], [helper.make_value_info("z", maps)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 1)])
    with pytest.raises(UnsupportedError, match="has what is not read"):
        prepared(proto)
