"""External data outside the model: refused wherever it is referenced, and no file is opened."""

from __future__ import annotations

import builtins
import io
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from tests.onnx.onnx_text import proto_of
from torchrlopt.errors import ModelFormatError, UnsafePathError
from torchrlopt.onnx import files

BODY = """g (float[2] x, bool c) => (float[2] y) {
  y = If(c) <
    then_branch = one () => (float[2] p) { p = Neg(x) },
    else_branch = two () => (float[2] q) { q = Relu(x) }
  >
}"""


def external(entries: dict[str, str], data_type: int = TensorProto.FLOAT) -> TensorProto:
    tensor = TensorProto(name="w", data_type=data_type, dims=(2,), data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


# ---- where it is described


def _in_weights(proto: onnx.ModelProto, tensor: TensorProto) -> None:
    proto.graph.initializer.append(tensor)


def _in_subgraph(proto: onnx.ModelProto, tensor: TensorProto) -> None:
    proto.graph.node[0].attribute[0].g.initializer.append(tensor)


def _in_empty_subgraph(proto: onnx.ModelProto, tensor: TensorProto) -> None:
    output = helper.make_tensor_value_info("w", TensorProto.FLOAT, [2])
    graph = helper.make_graph([], "empty", [], [output], [tensor])
    proto.graph.node[0].attribute[0].g.CopyFrom(graph)


def _in_constant(proto: onnx.ModelProto, tensor: TensorProto) -> None:
    proto.graph.node.append(helper.make_node("Constant", [], ["k"], value=tensor))


def _in_list(proto: onnx.ModelProto, tensor: TensorProto) -> None:
    proto.opset_import.add(domain="my", version=1)
    proto.graph.node.append(helper.make_node("Foo", ["x"], ["k"], domain="my", many=[tensor]))


def _in_function(proto: onnx.ModelProto, tensor: TensorProto) -> None:
    proto.opset_import.add(domain="f", version=1)
    nodes = [
        helper.make_node("Constant", [], ["k"], value=tensor),
        helper.make_node("Add", ["s", "k"], ["t"]),
    ]
    proto.functions.append(helper.make_function("f", "F", ["s"], ["t"], nodes, [helper.make_opsetid("", 23)]))


def _in_default_of_function(proto: onnx.ModelProto, tensor: TensorProto) -> None:
    _in_function(proto, helper.make_tensor("k", TensorProto.FLOAT, [2], [1.0, 2.0]))
    proto.functions[0].attribute_proto.append(helper.make_attribute("value", tensor))


def _in_sparse_values(proto: onnx.ModelProto, tensor: TensorProto) -> None:
    places = helper.make_tensor("i", TensorProto.INT64, [2], [0, 1])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(tensor, places, [4]))


def _in_sparse_places(proto: onnx.ModelProto, tensor: TensorProto) -> None:
    values = helper.make_tensor("s", TensorProto.FLOAT, [2], [1.0, 2.0])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, tensor, [4]))


def _in_sparse_attribute(proto: onnx.ModelProto, tensor: TensorProto) -> None:
    places = helper.make_tensor("i", TensorProto.INT64, [2], [0, 1])
    sparse = helper.make_sparse_tensor(tensor, places, [4])
    proto.graph.node.append(helper.make_node("Constant", [], ["k"], sparse_value=sparse))


def _in_training(proto: onnx.ModelProto, tensor: TensorProto) -> None:
    proto.training_info.add().initialization.initializer.append(tensor)


def _in_algorithm(proto: onnx.ModelProto, tensor: TensorProto) -> None:
    node = helper.make_node("Constant", [], ["k"], value=tensor)
    proto.training_info.add().algorithm.node.append(node)


PLACES: list[Callable[[onnx.ModelProto, TensorProto], None]] = [
    _in_weights,
    _in_subgraph,
    _in_empty_subgraph,
    _in_constant,
    _in_list,
    _in_function,
    _in_default_of_function,
    _in_sparse_values,
    _in_sparse_places,
    _in_sparse_attribute,
    _in_training,
    _in_algorithm,
]

# ---- what it says


def plain(location: str, offset: str = "0", length: str = "8") -> dict[str, str]:
    return {"location": location, "offset": offset, "length": length}


SAYS: dict[str, dict[str, str]] = {
    "no location": {"offset": "0"},
    "empty": plain(""),
    "parent": plain("../secret"),
    "parent of a folder": plain("folder/../../secret"),
    "absolute": plain("/etc/hostname"),
    "device": plain("/dev/zero"),
    "two slashes": plain("//etc/hostname"),
    "missing": plain("missing"),
    "too long": plain("a" * 5000),
    "NUL": plain("data\0"),
    "line": plain("data\n"),
    "line of Unicode": plain("data\u2028"),
    "backslash": plain("..\\secret"),
    "wide dots": plain("\uff0e\uff0e/secret"),
    "two-dot leader": plain("\u2025/secret"),
    "wide slash": plain("folder\uff0fdata"),
    "dot": plain("."),
    "folder": plain("folder"),
    "symbolic link": plain("symbolic"),
    "link to a folder": plain("linked/data"),
    "hard link": plain("hard"),
    "pipe": plain("pipe"),
    "socket": plain("socket"),
    "negative offset": plain("data", offset="-1"),
    "offset beyond": plain("data", offset="16"),
    "negative length": plain("data", length="-1"),
    "length beyond": plain("data", length="24"),
    "sum overflows": plain("data", offset=str(2**63 - 4)),
    "offset of 21 digits": plain("data", offset="1" * 21),
    "offset in hexadecimal": plain("data", offset="0x0"),
    "offset of other digits": plain("data", offset="\uff10"),
    "offset with spaces": plain("data", offset=" 0"),
    "length as a float": plain("data", length="8.0"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder with links out of it."""
    (tmp_path / "secret").write_bytes(bytes(8))
    inside = tmp_path / "inside"
    (inside / "folder").mkdir(parents=True)
    (inside / "data").write_bytes(bytes(16))
    (inside / "folder" / "data").write_bytes(bytes(16))
    (inside / "symbolic").symlink_to(inside / "data")
    (inside / "linked").symlink_to(inside / "folder")
    os.link(tmp_path / "secret", inside / "hard")
    os.mkfifo(inside / "pipe")
    monkeypatch.chdir(inside)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
    return inside


def _opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are opened from now on."""
    names: list[str] = []

    def watch(module: Any, name: str) -> None:
        original = getattr(module, name)

        def opening(file: Any, *args: Any, **kwargs: Any) -> Any:
            names.append(str(file))
            return original(file, *args, **kwargs)

        monkeypatch.setattr(module, name, opening)

    for module, name in ((builtins, "open"), (io, "open"), (os, "open")):
        watch(module, name)
    return names


def _refused(proto: onnx.ModelProto, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModelFormatError:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    names = _opened(monkeypatch)
    with pytest.raises(ModelFormatError) as caught:
        files.load(path)
    assert set(names) == {str(path)}
    return caught.value


@pytest.mark.parametrize("says", SAYS)
def test_places_that_are_not_the_models(says: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = proto_of(BODY)
    _in_weights(proto, external(SAYS[says]))
    assert type(_refused(proto, folder, monkeypatch)) is UnsafePathError


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__.removeprefix("_"))
def test_every_tensor_is_looked_at(
    place: Callable[[onnx.ModelProto, TensorProto], None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = proto_of(BODY)
    place(proto, external(plain("../secret")))
    assert type(_refused(proto, folder, monkeypatch)) is UnsafePathError


def test_a_place_is_given_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = proto_of(BODY)
    tensor = external(plain("../secret"))
    tensor.external_data.add(key="location", value="data")
    _in_weights(proto, tensor)
    assert type(_refused(proto, folder, monkeypatch)) is UnsafePathError


@pytest.mark.parametrize(
    ("length", "data_type"), [("4", TensorProto.FLOAT), ("16", TensorProto.FLOAT), ("8", TensorProto.STRING)]
)
def test_data_of_another_size_than_the_tensor(
    length: str, data_type: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = proto_of(BODY)
    _in_weights(proto, external(plain("data", length=length), data_type))
    assert type(_refused(proto, folder, monkeypatch)) is ModelFormatError


def test_a_model_in_memory_may_not_refer_to_files() -> None:
    proto = proto_of(BODY)
    _in_function(proto, external(plain("data")))
    with pytest.raises(UnsafePathError):
        files.prepared(proto)


@pytest.mark.parametrize("location", ["data", "folder/data", "./data"])
def test_data_in_the_models_folder_is_read(location: str, folder: Path) -> None:
    proto = proto_of(
        "g (float[2] x) => (float[2] y) { y = Add(x, w) }".replace("{ y", "<float[2] w = {1,2}> { y")
    )
    del proto.graph.initializer[:]
    _in_weights(proto, external(plain(location, offset="8")))
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    weight = files.load(folder / "model.onnx").graph.initializers["w"].const_value
    assert weight is not None
    assert weight.numpy().tolist() == [0.0, 0.0]
