"""The file fuzzer detects the failures it looks for."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir
import pytest

pytest.importorskip("onnxruntime")

from tests.fuzz.files import fuzzer
from tests.fuzz.outcome import Outcome
from torchrlopt.executors.lowering import lazy_code
from torchrlopt.executors.lowering.around import _Around
from torchrlopt.executors.lowering.model_inputs import fake_input


def _named_by_the_file(lowering: _Around, value: onnx_ir.Value, like: onnx_ir.Value) -> None:
    """As inputs were declared before names were kept from source."""
    fake = fake_input(lowering.emitter, like)
    lowering.entries[value] = lowering.add_placeholder(str(value.name), fake)
    lowering.arguments.append((value, fake))


def judged(content: bytes, folder: Path) -> Outcome:
    return fuzzer._judged(content, folder, folder / "RAN", "one process")


def with_code(folder: Path) -> bytes:
    proto = onnx.load_model_from_string(fuzzer.bases(folder)["images"])
    text = f"x=open({str(folder / 'RAN')!r},'w').write('1')"
    proto.graph.input[0].name = text
    for node in proto.graph.node:
        node.input[:] = [text if name == "x" else name for name in node.input]
    return proto.SerializeToString()


def test_code_that_runs_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = with_code(tmp_path)
    assert judged(content, tmp_path).kind == "right"
    monkeypatch.setattr(_Around, "_add_argument", _named_by_the_file)
    monkeypatch.setattr(lazy_code, "checked", lambda graph: graph)
    assert judged(content, tmp_path).reason == "text of the file was run"


def test_other_numbers_are_seen(tmp_path: Path) -> None:
    source, target = tmp_path / "a.onnx", tmp_path / "b.onnx"
    proto = onnx.load_model_from_string(fuzzer.bases(tmp_path)["images"])
    source.write_bytes(proto.SerializeToString())
    assert fuzzer._differs(source, source, Outcome("right")) == ""
    del proto.graph.node[-1]
    proto.graph.output[0].name = proto.graph.node[-1].output[0]
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    target.write_bytes(proto.SerializeToString())
    assert "output" in fuzzer._differs(source, target, Outcome("right"))
    target.write_bytes(b"no model")
    assert "runs the original, and not the result" in fuzzer._differs(source, target, Outcome("right"))
