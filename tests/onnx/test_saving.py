"""A model and its data are written atomically: after any failure the previous files can still be read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx.onnx_text import proto_of
from torchrlopt.errors import ModelFormatError, OptionsError, UnsafePathError
from torchrlopt.onnx import files, safety, saving
from torchrlopt.onnx.saving import Staged

SIZE = 1000
TEXT = f"g (float[{SIZE}] x) => (float[{SIZE}] y) <float[{SIZE}] w = {{%s}}> {{ y = Mul(x, w) }}"


def _inline(start: float) -> onnx.ModelProto:
    proto = proto_of(TEXT % ",".join(str(start + i) for i in range(SIZE)))
    weight = np.asarray(proto.graph.initializer[0].float_data, np.float32)
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    return proto


def _outside(folder: Path, start: float = 0.0, name: str = "in.onnx") -> Path:
    """A model with external data as the exporter writes it, in `name` and `name.data`."""
    folder.mkdir(exist_ok=True)
    onnx.save(
        _inline(start), folder / name, save_as_external_data=True, location=f"{name}.data", size_threshold=0
    )
    return folder / name


def _move(source: Path, target: Path, producer: str = saving.PRODUCER) -> None:
    """Write a model elsewhere."""
    proto = safety.parse(source)
    proto.producer_name = producer
    with Staged(target) as staged:
        staged.write(proto, source.parent)
        staged.commit()


def _weight(path: Path) -> Any:
    tensor = files.load(path).graph.initializers["w"].const_value
    assert tensor is not None
    return tensor.numpy()


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_data_goes_with_the_model(tmp_path: Path) -> None:
    source = _outside(tmp_path / "a", 5.0)
    (tmp_path / "b").mkdir()
    _move(source, tmp_path / "b" / "out.onnx")
    for path in (tmp_path / "a").iterdir():
        path.unlink()
    np.testing.assert_array_equal(_weight(tmp_path / "b" / "out.onnx"), np.arange(SIZE) + 5.0)
    assert _names(tmp_path / "b") == {"out.onnx", "out.onnx.data"}


def test_data_of_others_is_not_touched(tmp_path: Path) -> None:
    """A model beside it may read a file of any name."""
    other = _outside(tmp_path, 7.0, "other.onnx")
    os.rename(tmp_path / "other.onnx.data", tmp_path / "out.onnx.data")
    proto = safety.parse(other)
    proto.graph.initializer[0].external_data[0].value = "out.onnx.data"
    other.write_bytes(proto.SerializeToString())
    _move(_outside(tmp_path / "a"), tmp_path / "out.onnx")
    np.testing.assert_array_equal(_weight(other), np.arange(SIZE) + 7.0)
    np.testing.assert_array_equal(_weight(tmp_path / "out.onnx"), np.arange(SIZE))


def test_writing_again_leaves_one_data_file(tmp_path: Path) -> None:
    for start in (1.0, 2.0, 3.0):
        _move(_outside(tmp_path / "a", start), tmp_path / "out.onnx")
        np.testing.assert_array_equal(_weight(tmp_path / "out.onnx"), np.arange(SIZE) + start)
    assert len(_names(tmp_path)) == 3  # a, the model, its data
    small = tmp_path / "small.onnx"
    small.write_bytes(proto_of("g (float[2] x) => (float[2] y) { y = Relu(x) }").SerializeToString())
    _move(small, tmp_path / "out.onnx")
    assert _names(tmp_path) == {"a", "small.onnx", "out.onnx"}


def test_data_that_others_wrote_stays(tmp_path: Path) -> None:
    """The model that is replaced may have been copied: only what was written here goes."""
    source = _outside(tmp_path, 4.0)
    _move(source, source)
    assert _names(tmp_path) == {"in.onnx", "in.onnx.data", "in.onnx.1.data"}
    np.testing.assert_array_equal(_weight(source), np.arange(SIZE) + 4.0)


def test_data_that_is_still_read_stays(tmp_path: Path) -> None:
    first = _outside(tmp_path / "a", 1.0)
    _move(first, tmp_path / "out.onnx")
    copy = tmp_path / "copy.onnx"
    copy.write_bytes((tmp_path / "out.onnx").read_bytes())
    proto = safety.parse(copy)
    with Staged(tmp_path / "out.onnx", keep=[tmp_path / "out.onnx.data"]) as staged:
        staged.write(proto, tmp_path)
        staged.commit()
    np.testing.assert_array_equal(_weight(copy), np.arange(SIZE) + 1.0)


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_data_of_a_model_with_another_name_stays(link: Any, tmp_path: Path) -> None:
    _move(_outside(tmp_path / "a", 1.0), tmp_path / "out.onnx")
    (tmp_path / "out.onnx").rename(tmp_path / "other.onnx")
    link(tmp_path / "other.onnx", tmp_path / "out.onnx")
    _move(_outside(tmp_path / "a", 2.0), tmp_path / "out.onnx")
    np.testing.assert_array_equal(_weight(tmp_path / "other.onnx"), np.arange(SIZE) + 1.0)
    np.testing.assert_array_equal(_weight(tmp_path / "out.onnx"), np.arange(SIZE) + 2.0)


def test_shared_bytes_are_written_once(tmp_path: Path) -> None:
    source = _outside(tmp_path / "a")
    proto = safety.parse(source)
    tied = proto.graph.initializer.add()
    tied.CopyFrom(proto.graph.initializer[0])
    tied.name = "tied"
    with Staged(tmp_path / "out.onnx") as staged:
        staged.write(proto, source.parent)
        staged.commit()
    assert (tmp_path / "out.onnx.data").stat().st_size < 2 * 4 * SIZE


def test_tensors_of_subgraphs_and_functions_go_along(tmp_path: Path) -> None:
    source = _outside(tmp_path / "a", 3.0)
    proto = safety.parse(source)
    weight = proto.graph.initializer[0]
    body = [
        onnx.helper.make_node("Constant", [], ["k"], value=weight),
        onnx.helper.make_node("Add", ["s", "k"], ["t"]),
    ]
    imports = [onnx.helper.make_opsetid("", 23)]
    proto.opset_import.add(domain="f", version=1)
    proto.functions.append(onnx.helper.make_function("f", "F", ["s"], ["t"], body, imports))
    with Staged(tmp_path / "out.onnx") as staged:
        staged.write(proto, source.parent)
        staged.commit()
    places = {safety.location(tensor) for tensor in safety.tensors(safety.parse(tmp_path / "out.onnx"))}
    assert {name for name, _ in places} == {"out.onnx.data"}
    model = files.load(tmp_path / "out.onnx")
    (function,) = model.functions.values()
    tensor = function[0].attributes["value"].as_tensor()
    np.testing.assert_array_equal(tensor.numpy(), np.arange(SIZE) + 3.0)


def test_large_models_are_written_in_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "MAX_INLINE_BYTES", 0)
    files.save_message(files.message(files.prepared(_inline(2.0))), tmp_path / "out.onnx")
    assert _names(tmp_path) == {"out.onnx", "out.onnx.data"}
    np.testing.assert_array_equal(_weight(tmp_path / "out.onnx"), np.arange(SIZE) + 2.0)


def test_small_models_are_written_in_one_file(tmp_path: Path) -> None:
    files.save_message(proto_of(TEXT % ",".join(["1"] * SIZE)), tmp_path / "out.onnx")
    assert _names(tmp_path) == {"out.onnx"}


# ---- what fails


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_writing_leaves_the_old_model(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = _outside(tmp_path / "out", 9.0, "out.onnx")
    before = _names(tmp_path / "out")

    def fail(*args: Any) -> Any:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="no space"):
        _move(_outside(tmp_path / "a"), target)
    assert _names(tmp_path / "out") == before
    np.testing.assert_array_equal(_weight(target), np.arange(SIZE) + 9.0)


def test_nothing_is_left_of_what_is_not_committed(tmp_path: Path) -> None:
    source = _outside(tmp_path / "a")
    proto = safety.parse(source)
    with Staged(tmp_path / "out.onnx") as staged:
        staged.write(proto, source.parent)
        assert files.load(staged.model_path).graph.name == "g"
    assert _names(tmp_path) == {"a"}


def test_the_second_writing_counts(tmp_path: Path) -> None:
    source = _outside(tmp_path / "a")
    with Staged(tmp_path / "out.onnx") as staged:
        staged.write(safety.parse(source), source.parent)
        staged.write(proto_of("h (float[2] x) => (float[2] y) { y = Relu(x) }"), tmp_path)
        staged.commit()
    assert _names(tmp_path) == {"a", "out.onnx"}
    assert files.load(tmp_path / "out.onnx").graph.name == "h"


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/null")):
        with pytest.raises(OptionsError, match="no file"):
            Staged(path)


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    source = _outside(tmp_path / "a", 6.0)
    (tmp_path / "out.onnx").symlink_to(source)
    _move(source, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").is_symlink()
    np.testing.assert_array_equal(_weight(source), np.arange(SIZE) + 6.0)


def test_data_that_was_swapped_meanwhile_is_refused(tmp_path: Path) -> None:
    source = _outside(tmp_path / "a")
    proto = safety.parse(source)
    data = tmp_path / "a" / "in.onnx.data"
    content = data.read_bytes()
    data.write_bytes(content[:-4])
    with Staged(tmp_path / "out.onnx") as staged, pytest.raises(UnsafePathError, match="replaced"):
        staged.write(proto, source.parent)
    data.rename(tmp_path / "a" / "moved")
    data.symlink_to(tmp_path / "a" / "moved")
    with Staged(tmp_path / "out.onnx") as staged, pytest.raises(OSError, match="symbolic"):
        staged.write(proto, source.parent)
    assert _names(tmp_path) == {"a"}


def test_a_model_that_is_too_large_for_its_format(tmp_path: Path) -> None:
    proto = _inline(0.0)

    class Refusing:
        """A message that cannot be written."""

        def __getattr__(self, name: str) -> Any:
            return getattr(proto, name)

        def SerializeToString(self) -> bytes:
            raise ValueError("over 2 GB")

    with Staged(tmp_path / "out.onnx") as staged, pytest.raises(ModelFormatError, match="too large"):
        staged.write(Refusing(), tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("has_links", [True, False])
def test_of_two_that_save_to_one_path_the_later_one_stays(
    has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError()))
    first, second = (_outside(tmp_path / name, start) for name, start in (("a", 1.0), ("b", 2.0)))
    target = tmp_path / "out" / "out.onnx"
    target.parent.mkdir()
    with Staged(target) as one, Staged(target) as other:
        one.write(safety.parse(first), first.parent)
        other.write(safety.parse(second), second.parent)
        one.commit()
        np.testing.assert_array_equal(_weight(target), np.arange(SIZE) + 1.0)
        other.commit()
    np.testing.assert_array_equal(_weight(target), np.arange(SIZE) + 2.0)
