"""Types of values after operators that the core does not know."""

from __future__ import annotations

import onnx
import pytest

from tests.onnx.onnx_text import proto_of
from torchrlopt.errors import UnsupportedError
from torchrlopt.limited import Limits
from torchrlopt.onnx import answers, files, missing_types
from torchrlopt.onnx.missing_types import read_with_types
from torchrlopt.onnx.program import Program

# Nothing is declared between; the core has no Unique, and knows nothing of what follows it.
BODY = """g (float[2,4] x) => (float[4,2] z) {
  a = Det(m)
  s = Add(x, a)
  t = Transpose <perm = [1, 0]> (s)
  u = Transpose <perm = [1, 0]> (t)
  z = Transpose <perm = [1, 0]> (u)
}""".replace("a = Det(m)", "m = ConstantOfShape(n)\n  a = Det(m)").replace(
    "{\n", "<int64[2] n = {3,3}> {\n", 1
)


def _read(proto: onnx.ModelProto) -> Program:
    return read_with_types(proto, files.prepared(proto))


def _opaque(program: Program) -> set[str]:
    nodes = map(program.graph.node, program.graph.topological_order())
    return {str(node["attrs"]["op"]).partition("#")[0] for node in nodes if node["op"] == "Opaque"}


def test_what_follows_an_unknown_operator_is_typed() -> None:
    assert _opaque(_read(proto_of(BODY))) == {"ai.onnx::Det"}


def test_without_an_answer_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise UnsupportedError("it died")

    monkeypatch.setattr(answers, "run_limited", refuse)
    program = _read(proto_of(BODY))
    assert {"ai.onnx::Det", "ai.onnx::Transpose"} <= _opaque(program)


def test_a_file_that_hangs_the_inference_is_read_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inference of onnx 1.23 does not come back from this equation, which runtimes refuse."""
    monkeypatch.setattr(missing_types, "LIMITS", Limits(seconds=0.5, memory_bytes=1 << 30))
    body = 'g (float[2,2] x) => (float[2] z) { y = Einsum <equation = "i...j..."> (x)  z = Transpose(y) }'
    assert _opaque(_read(proto_of(body))) == {"ai.onnx::Einsum", "ai.onnx::Transpose"}


@pytest.mark.parametrize("answer", [b"\xff\xff", b"\x6a\x00" * 100])
def test_an_answer_that_makes_no_sense_changes_nothing(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "run_limited", lambda *_: answer)
    assert "ai.onnx::Transpose" in _opaque(_read(proto_of(BODY)))


def test_an_answer_that_contradicts_the_file_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    info = onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [7, 7, 7])
    wrong = onnx.GraphProto(value_info=[info]).SerializeToString()
    monkeypatch.setattr(answers, "run_limited", lambda *_: wrong)
    assert "ai.onnx::Transpose" in _opaque(_read(proto_of(BODY)))


def test_weights_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []

    def note(module: str, arguments: object, data: bytes, *_: object) -> bytes:
        sent.append(data)
        return b""

    monkeypatch.setattr(answers, "run_limited", note)
    proto = proto_of(BODY)
    proto.graph.initializer.append(
        onnx.TensorProto(name="w", data_type=1, dims=(1 << 20,), raw_data=bytes(4 << 20))
    )
    _read(proto)
    (data,) = sent
    assert len(data) < 2000
    small = onnx.ModelProto.FromString(data)
    assert [tensor.dims for tensor in small.graph.initializer][-1] == [1 << 20]


def test_a_file_with_types_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "run_limited", None)
    _read(proto_of("g (float[2,4] x) => (float[4,2] z) { z = Transpose <perm = [1, 0]> (x) }"))
