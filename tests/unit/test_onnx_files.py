"""Models from outside: malformed, oversized and malicious files are refused before anything is opened."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from tests.unit.onnx_text import model_of, proto_of
from torchrlopt.errors import ModelFormatError, RlOptError, UnsafePathError
from torchrlopt.onnx import files

BODY = "g (float[2] x) => (float[2] y) { y = Relu(x) }"


def test_a_model_is_loaded_and_its_nodes_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    proto = proto_of("g (float[2] x) => (float[2] z) { y = Relu(x) z = Relu(y) }")
    for node in proto.graph.node:
        node.name = "same"
    onnx.save(proto, path)
    model = files.load(path)
    assert [node.name for node in model.graph] == ["same", "same.1"]


def _cyclic(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].input[0] = proto.graph.node[0].output[0]


def _dangling(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].input[0] = "nowhere"


def _duplicate(proto: onnx.ModelProto) -> None:
    proto.graph.node.append(proto.graph.node[0])


def _unknown_operator(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].op_type = "NoSuchOperator"


def _no_output(proto: onnx.ModelProto) -> None:
    proto.graph.output[0].name = "nowhere"


def _bad_attribute(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].attribute.append(helper.make_attribute("nonsense", 1))


def _lying_initializer(proto: onnx.ModelProto) -> None:
    tensor = helper.make_tensor("w", onnx.TensorProto.FLOAT, [2], [1.0, 2.0])
    tensor.dims[0] = 1 << 40
    proto.graph.initializer.append(tensor)


@pytest.mark.parametrize(
    "damage",
    [_cyclic, _dangling, _duplicate, _unknown_operator, _no_output, _bad_attribute, _lying_initializer],
)
def test_malformed_models_are_refused_at_once(damage: Callable[[onnx.ModelProto], None]) -> None:
    proto = proto_of(BODY)
    damage(proto)
    start = time.perf_counter()
    with pytest.raises(ModelFormatError):
        files.prepared(proto)
    assert time.perf_counter() - start < 1


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    whole = proto_of(BODY).SerializeToString()
    for name, content in {"empty": b"", "text": b"hello", "half": whole[: len(whole) // 2]}.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ModelFormatError):
            files.load(path)


@given(st.integers(min_value=0), st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused(place: int, byte: int) -> None:
    content = bytearray(proto_of(BODY).SerializeToString())
    content[place % len(content)] = byte
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(bytes(content))
    except Exception:  # noqa: BLE001 - protobuf's own refusal; what is tested comes after it
        return
    try:
        files.prepared(proto)
    except RlOptError:
        return


def test_too_large_and_too_deep_models_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "MAX_NODES", 3)
    chain = "".join(f"t{i + 1} = Relu(t{i}) " for i in range(4))
    with pytest.raises(ModelFormatError, match="too large"):
        model_of(f"g (float[2] t0) => (float[2] t4) {{ {chain} }}")
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 10)
    path = tmp_path / "model.onnx"
    onnx.save(proto_of(BODY), path)
    with pytest.raises(ModelFormatError, match="too large"):
        files.load(path)


def test_deeply_nested_subgraphs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_DEPTH", 5)
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    node = helper.make_node("Relu", ["x"], ["y"])
    for _ in range(6):
        graph = helper.make_graph([node], "inner", [], [output])
        node = helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph)
    with pytest.raises(ModelFormatError, match="nested"):
        files.prepared(helper.make_model(helper.make_graph([node], "g", [], [output])))


# ---- external data


def _external(location: str, offset: int = 0, length: int = 8) -> onnx.ModelProto:
    proto = proto_of("g (float[2] x) => (float[2] y) <float[2] w = {1,2}> { y = Mul(x, w) }")
    tensor = proto.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return proto


def _saved(proto: onnx.ModelProto, directory: Path) -> Path:
    path = directory / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_in_the_same_directory_is_read(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(np.asarray([3.0, 4.0], np.float32).tobytes())
    model = files.load(_saved(_external("data"), tmp_path))
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    assert tensor.numpy().tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    "location", ["", "../data", "/etc/hostname", "a/../../data", "missing", "data\0", "..\\data", "."]
)
def test_locations_outside_are_refused(location: str, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "data").write_bytes(bytes(8))
    with pytest.raises(UnsafePathError):
        files.load(_saved(_external(location), inside))


@pytest.mark.parametrize(("offset", "length"), [(-1, 8), (0, 9), (8, 8), (0, -1), (1 << 62, 8)])
def test_extents_beyond_the_file_are_refused(offset: int, length: int, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(8))
    with pytest.raises(UnsafePathError, match="beyond"):
        files.load(_saved(_external("data", offset, length), tmp_path))


def _symlink(target: Path, link: Path) -> None:
    link.symlink_to(target)


def _hardlink(target: Path, link: Path) -> None:
    os.link(target, link)


def _fifo(_: Path, link: Path) -> None:
    os.mkfifo(link)


@pytest.mark.parametrize("make", [_symlink, _hardlink, _fifo])
def test_only_plain_files_are_opened(make: Callable[[Path, Path], None], tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret").write_bytes(bytes(8))
    make(tmp_path / "secret", inside / "data")
    with pytest.raises(UnsafePathError):
        files.load(_saved(_external("data"), inside))


def test_a_model_in_memory_may_not_refer_to_files() -> None:
    with pytest.raises(UnsafePathError):
        files.prepared(_external("data"))


# ---- saving


@pytest.mark.parametrize("max_inline", [1 << 30, 0], ids=["inline", "external"])
def test_a_saved_model_is_loaded_again(
    max_inline: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_INLINE_BYTES", max_inline)
    content = ",".join(str(i) for i in range(1000))
    model = model_of(
        f"g (float[1000] x) => (float[1000] y) <float[1000] w = {{{content}}}> {{ y = Mul(x, w) }}"
    )
    files.save(model, tmp_path / "model.onnx")
    again = files.load(tmp_path / "model.onnx").graph.initializers["w"].const_value
    assert again is not None
    np.testing.assert_array_equal(again.numpy(), np.arange(1000))
    expected = {"model.onnx"} | ({"model.onnx.data"} if max_inline == 0 else set())
    assert {path.name for path in tmp_path.iterdir()} == expected


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")

    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(onnx_ir, "save", fail)
    with pytest.raises(OSError, match="no space"):
        files.save(model_of(BODY), path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]
