"""Models of old opsets are upgraded to supported ones without losing anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.onnx.onnx_text import proto_of
from torchrlopt.errors import UnsupportedError
from torchrlopt.limited import Limits
from torchrlopt.onnx import answers, upgrade
from torchrlopt.onnx.opsets import OLDEST, default_opset
from torchrlopt.onnx.upgrade import upgraded


def old(body: str, opset: int) -> onnx.ModelProto:
    proto = proto_of(body, opset)
    proto.ir_version = 4
    onnx.checker.check_model(proto)
    return proto


SOFTMAX = "g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis=1>(x) }"


@pytest.mark.parametrize("opset", [7, 9, 11, 12])
def test_the_meaning_stays(opset: int) -> None:
    """Softmax took all axes from its own on together."""
    proto = old(SOFTMAX, opset)
    new = upgraded(proto)
    assert default_opset(new) == OLDEST
    onnx.checker.check_model(new, full_check=True)
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    (got,) = ReferenceEvaluator(new).run(None, {"x": x})
    rows = np.exp(x.reshape(2, -1))
    np.testing.assert_allclose(got.reshape(2, -1), rows / rows.sum(1, keepdims=True), rtol=1e-5)


def test_bodies_are_converted() -> None:
    body = """g (float[2,3,4] x, bool c) => (float[2,3,4] y) {
      r = Relu(x)
      y = If(c) <then_branch = one () => (float[2,3,4] p) { p = Softmax<axis=1>(r) },
                 else_branch = two () => (float[2,3,4] q) { q = Neg(r) }>
    }"""
    new = upgraded(old(body, 11))
    onnx.checker.check_model(new, full_check=True)
    x = np.random.default_rng(0).random((2, 3, 4)).astype(np.float32)
    (got,) = ReferenceEvaluator(new).run(None, {"x": x, "c": np.array(True)})
    rows = np.exp(x.reshape(2, -1))
    np.testing.assert_allclose(got.reshape(2, -1), rows / rows.sum(1, keepdims=True), rtol=1e-5)


def test_large_weights_and_what_is_said_of_the_model_stay() -> None:
    proto = proto_of("g (float[5,2000] x) => (float[5,2000] y) { y = Mul(x, w) }", 9)
    weight = np.random.default_rng(0).random(2000, dtype=np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    proto.opset_import.add(domain="my", version=3)
    proto.doc_string, proto.model_version, proto.domain = "what it is for", 7, "org.example"
    proto.metadata_props.add(key="author", value="me")
    new = upgraded(proto)
    np.testing.assert_array_equal(numpy_helper.to_array(new.graph.initializer[0]), weight)
    assert {entry.domain: entry.version for entry in new.opset_import} == {"": OLDEST, "my": 3}
    assert (new.doc_string, new.model_version, new.domain) == ("what it is for", 7, "org.example")
    assert new.metadata_props[0].value == "me"


def test_functions_become_part_of_the_graph_and_free_sizes_stay() -> None:
    body = """g (float[2,3] x) => (float[N,M] y) { y = my.Mean(x) }
    <domain: "my", opset_import: ["" : 13]> Mean (x) => (y) { y = ReduceMean<axes=[1]>(x) }"""
    proto = proto_of(body, 15, ', "my" : 1')
    new = upgraded(proto, target=18)
    onnx.checker.check_model(new, full_check=True)
    assert default_opset(new) == 18
    assert not new.functions
    assert new.graph.output == proto.graph.output
    (got,) = ReferenceEvaluator(new).run(None, {"x": np.array([[0, 1, 2], [3, 4, 8]], np.float32)})
    np.testing.assert_array_equal(got, [[1], [5]])


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("opset", "op_type"), [(7, "Upsample"), (9, "Upsample"), (10, "Resize")])
def test_resizing_counts_pixels_as_before(opset: int, op_type: str, mode: str) -> None:
    """Against ONNX Runtime, which knows the old operators."""
    node = (
        f'{op_type} <mode = "{mode}"> (x, s)'
        if opset > 7
        else f'{op_type} <mode = "{mode}", scales = [1.0, 1.0, 1.5, 2.5]> (x)'
    )
    body = f"""g (float[1,1,4,6] x) => (float[a,b,c,d] y) {{
      s = Constant <value = float[4] {{1.0, 1.0, 1.5, 2.5}}> () y = {node} }}"""
    proto = old(body, opset)
    x = np.random.default_rng(0).random((1, 1, 4, 6), dtype=np.float32)
    before, after = (
        onnxruntime.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, {"x": x}
        )[0]
        for each in (proto, upgraded(proto))
    )
    np.testing.assert_allclose(after, before, rtol=1e-5)


def test_an_opset_that_is_read_is_left_alone() -> None:
    proto = old(SOFTMAX, 13)
    assert upgraded(proto) is proto


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match="version of the ONNX operators"):
        upgraded(old(SOFTMAX, 6))
    scan = """g (float[1,3,2] s, float[1,3,2] x) => (float[1,3,2] y) {
      y = Scan <num_scan_inputs = 1, body = b (float[2] p) => (float[2] q) { q = Neg (p) }> (, x) }"""
    with pytest.raises(UnsupportedError, match="Scan of opset 8"):
        upgraded(proto_of(scan, 8))
    unknown = old("g (float[2,2] x) => (float[2,2] y) { y = Relu(x) }", 9)
    unknown.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(UnsupportedError, match="conversion from opset 9 to 13 failed"):
        upgraded(unknown)
    monkeypatch.setattr(upgrade, "LIMITS", Limits(seconds=0.001, memory_bytes=1 << 30))
    monkeypatch.setattr(upgrade, "_BYTES_PER_S", 1e9)
    with pytest.raises(UnsupportedError, match="not done after"):
        upgraded(old(SOFTMAX, 9))


def test_an_answer_that_names_another_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The process that answers has read an untrusted file."""
    real = answers.run_limited

    def compromised(*given: Any) -> bytes:
        found = onnx.ModelProto.FromString(real(*given))
        tensor = found.graph.initializer.add(name="w", dims=[1], data_type=onnx.TensorProto.FLOAT)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="../secret")
        return found.SerializeToString()

    monkeypatch.setattr(answers, "run_limited", compromised)
    with pytest.raises(UnsupportedError, match="made an invalid model"):
        upgraded(old(SOFTMAX, 9), tmp_path / "model.onnx")
