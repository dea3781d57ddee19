"""A written file has to be valid, load and run if the original is valid, loads and runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.onnx.onnx_text import proto_of
from torchrlopt.errors import UnsupportedError, VerificationError
from torchrlopt.executors.onnx_runtimes.file_trial import try_file

RELU = "g (float[2] x) => (float[2] y) { y = Relu (x) }"
X = {"x": np.array([-1.0, 2.0], np.float32)}


def saved(folder: Path, name: str, body: str, opset: int = 17) -> Path:
    proto = proto_of(body, opset, imports=', "my" : 1')
    onnx.save(proto, folder / name)
    return folder / name


def test_equal_files_pass(tmp_path: Path) -> None:
    path = saved(tmp_path, "a", RELU)
    try_file(path, path, None)
    try_file(path, path, X, compares=True)


def test_an_invalid_result(tmp_path: Path) -> None:
    """Axes are no attribute of opset 18."""
    body = "g (float[2] x) => (float[1] y) { y = ReduceMean <axes = [0]> (x) }"
    with pytest.raises(UnsupportedError, match=r"not valid.*axes"):
        try_file(saved(tmp_path, "a", body, 17), saved(tmp_path, "b", body, 18), None)


def test_a_result_that_does_not_load(tmp_path: Path) -> None:
    """The runtime has a kernel of the operator in the version of opset 15, and none in that of opset 22."""
    body = "g (float[2] x) => (float[2] y) { y = RandomNormalLike (x) }"
    with pytest.raises(UnsupportedError, match="loads the original, but not the result"):
        try_file(saved(tmp_path, "a", body, 15), saved(tmp_path, "b", body, 23), None)


def test_a_result_that_does_not_run(tmp_path: Path) -> None:
    body = "g (float[n] x) => (float[m] y) { s = Constant <value_ints = [-1, %d]> () y = Reshape (x, s) }"
    before = saved(tmp_path, "a", body.replace("float[m]", "float[m,k]") % 2)
    after = saved(tmp_path, "b", body.replace("float[m]", "float[m,k]") % 3)
    try_file(before, after, None)
    with pytest.raises(UnsupportedError, match="runs the original, but not the result"):
        try_file(before, after, X)


def test_other_numbers(tmp_path: Path) -> None:
    before, after = saved(tmp_path, "a", RELU), saved(tmp_path, "b", RELU.replace("Relu", "Abs"))
    try_file(before, after, X)
    with pytest.raises(VerificationError, match="other numbers"):
        try_file(before, after, X, compares=True)
    with pytest.raises(VerificationError, match="NaN"):
        try_file(before, saved(tmp_path, "c", RELU.replace("Relu", "Sqrt")), X, compares=True)


def test_numbers_that_vary_are_not_compared(tmp_path: Path) -> None:
    path = saved(tmp_path, "a", "g (float[2] x) => (float[2] y) { y = RandomNormalLike (x) }", 15)
    try_file(path, path, X, compares=True)


def test_what_does_not_load_itself_asks_for_nothing(tmp_path: Path) -> None:
    """An operator of a library that is not registered here."""
    path = saved(tmp_path, "a", "g (float[2] x) => (float[2] y) { y = my.Foo (x) }")
    try_file(path, path, X)
    with pytest.raises(UnsupportedError, match="conversion cannot be checked"):
        try_file(path, path, X, compares=True)
