"""External models are checked, named and quiet; refusals are tested in `test_onnx_hostile*.py`."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from tests.onnx.onnx_text import proto_of
from torchrlopt.errors import ModelFormatError
from torchrlopt.onnx import files
from torchrlopt.onnx.quiet import quiet


def test_a_model_is_loaded_and_its_nodes_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    proto = proto_of("g (float[2] x) => (float[2] z) { y = Relu(x) z = Relu(y) }")
    for node in proto.graph.node:
        node.name = "same"
    onnx.save(proto, path)
    model = files.load(path)
    assert [node.name for node in model.graph] == ["same", "same.1"]


def test_what_libraries_say_about_a_model_is_not_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """onnx_ir logs what it makes of odd attributes; onnx warns of keys that it does not know."""
    proto = proto_of("g (float[2] x) => (float[2] y) { y = my.Foo(x) }", imports=', "my" : 1')
    proto.graph.node[0].attribute.add(name="text", type=onnx.AttributeProto.STRING, s=b"\xff")
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=(2,), data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "data"), ("colour", "blue")):
        tensor.external_data.add(key=key, value=value)
    proto.graph.initializer.append(tensor)
    (tmp_path / "data").write_bytes(bytes(8))
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = files.load(tmp_path / "model.onnx")
        files.message(model)
    assert caplog.records == []


def test_only_one_call_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("onnx_ir.somewhere")
    with quiet():
        logger.warning("hidden")
        logger.error("an error")
        theirs = threading.Thread(target=lambda: logger.warning("of another thread"))
        theirs.start()
        theirs.join()
    logger.warning("afterwards")
    assert [record.message for record in caplog.records] == ["an error", "of another thread", "afterwards"]


def test_nodes_of_one_name_are_named_in_linear_time() -> None:
    """Each of them asked for every number once: 12,000 took 12 s, so that these would take many minutes."""
    count = 60_000
    body = "\n".join(f"v{i + 1} = Relu(v{i})" for i in range(count))
    proto = proto_of(f"g (float[2] v0) => (float[2] v{count}) {{ {body} }}")
    for node in proto.graph.node:
        node.name = "n"
    proto.graph.node[5].name = "n.7"
    names = [node.name for node in files.prepared(proto).graph]
    assert len(set(names)) == count
    # As they were when each asked for every number: plans and reports name nodes by them.
    assert names[:10] == ["n", "n.1", "n.2", "n.3", "n.4", "n.7", "n.5", "n.6", "n.8", "n.9"]


def test_a_file_name_that_is_no_text_is_named_as_the_reason(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"model\xff.onnx")
    path.write_bytes(proto_of("g (float[2] x) => (float[2] y) { y = Relu(x) }").SerializeToString())
    with pytest.raises(ModelFormatError, match="name of the file is no UTF-8") as caught:
        files.load(path)
    str(caught.value).encode()


def test_weights_that_have_to_be_inputs_are_fixed(tmp_path: Path) -> None:
    """In format 3; in later ones, such a weight may be overridden."""
    proto = proto_of("g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }")
    for version, expected in ((3, ["x"]), (4, ["x", "w"])):
        proto.ir_version = version
        onnx.save(proto, tmp_path / "m.onnx")
        assert [value.name for value in files.load(tmp_path / "m.onnx").graph.inputs] == expected
