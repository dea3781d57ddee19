"""Checking one file against another: right ones pass, wrong ones fail, unrunnable ones are reported."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.onnx.onnx_text import proto_of
from torchrlopt.compile import check_file
from torchrlopt.compile.check_file import check_files, main
from torchrlopt.errors import LoweringError, ModelFormatError, UnsupportedError, VerificationError
from torchrlopt.judge.policy import Policy

MIDDLE = """g (float[2,4] x) => (float[2,4] z) <float[2,4] b> {{
  a = {before}
  b = my.Foo(a)
  z = {after}
}}"""


def saved(folder: Path, name: str, body: str) -> Path:
    path = folder / name
    path.write_bytes(proto_of(body, imports=', "my" : 1').SerializeToString())
    return path


def middle(folder: Path, name: str, before: str = "Relu(x)", after: str = "Neg(b)") -> Path:
    return saved(folder, name, MIDDLE.format(before=before, after=after))


def test_equal_models_pass_around_what_is_not_run(tmp_path: Path) -> None:
    checked = check_files(middle(tmp_path, "a"), middle(tmp_path, "b"), seed=0)
    assert checked.around == ("my::Foo",)
    assert checked.error == 0.0, "neither Relu nor Neg rounds"


@pytest.mark.parametrize(
    ("before", "after"), [("Abs(x)", "Neg(b)"), ("Relu(x)", "Abs(b)"), ("Relu(x)", "Add(b, x)")]
)
def test_a_difference_on_either_side_is_found(before: str, after: str, tmp_path: Path) -> None:
    with pytest.raises(VerificationError):
        check_files(middle(tmp_path, "a"), middle(tmp_path, "b", before, after), seed=0)


def test_another_order_of_what_is_no_tensor_is_found(tmp_path: Path) -> None:
    body = """g (float[2] x) => (float[2] z) <float[2] p> {
      s = SequenceConstruct(x)
      t = SequenceConstruct(x, x)
      i = Constant <value_int = 0> ()
      p = my.Two(%s)
      z = Neg(p)
    }"""
    with pytest.raises(VerificationError, match="other values"):
        check_files(saved(tmp_path, "a", body % "s, t, i"), saved(tmp_path, "b", body % "t, s, i"), seed=0)


def test_an_operator_that_is_gone_cannot_be_checked_around(tmp_path: Path) -> None:
    without = saved(tmp_path, "b", "g (float[2,4] x) => (float[2,4] z) { z = Neg(x) }")
    with pytest.raises(LoweringError, match="not there any more"):
        check_files(middle(tmp_path, "a"), without, seed=0)


@pytest.mark.parametrize(
    "body",
    [
        "g (float[1000000,1000000] x) => (float[1000000,1000000] z) { z = Relu(x) }",
        "g (float[999999,1] x, float[1,999999] y) => (float z) { a = Mul(x, y) z = ReduceMax<keepdims=0>(a)}",
        "g (float[N,1000000,1000000] x) => (float[N,1000000,1000000] z) { z = Relu(x) }",
    ],
    ids=["input", "intermediate", "symbolic"],
)
def test_what_would_fill_the_memory_is_not_run(body: str, tmp_path: Path) -> None:
    path = saved(tmp_path, "a", body)
    with pytest.raises(UnsupportedError, match="too large for the check"):
        check_files(path, path, seed=0)


@pytest.mark.parametrize("size", [1 << 40, 1 << 62])
def test_inputs_that_no_machine_holds_are_not_made(size: int, tmp_path: Path) -> None:
    path = saved(tmp_path, "a", f"g (float[{size},4] x) => (float[{size},4] z) {{ z = Relu(x) }}")
    with pytest.raises((UnsupportedError, LoweringError)):
        check_files(path, path, seed=0)


def test_verdicts_cross_to_the_other_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here without one: what `main` answers is what `check_apart` makes of it."""
    monkeypatch.setattr(
        check_file, "run_limited", lambda module, arguments, data, limits, what: main(data, arguments)
    )
    good, wrong = middle(tmp_path, "a"), middle(tmp_path, "b", after="Abs(b)")
    assert check_file.check_apart(good, good, 0, 0).around == ("my::Foo",)
    with pytest.raises(VerificationError, match="computes other numbers"):
        check_file.check_apart(good, wrong, 0, 0)
    (tmp_path / "c").write_bytes(b"hello")
    with pytest.raises(ModelFormatError, match="no ONNX model"):
        check_file.check_apart(good, tmp_path / "c", 0, 0)
    assert "refused" in json.loads(main(b"", (str(good), str(wrong), '{"seed": 0}')))


def test_the_check_runs_apart(tmp_path: Path) -> None:
    path = middle(tmp_path, "a")
    assert check_file.check_apart(path, path, seed=0, weight_bytes=0).around == ("my::Foo",)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_files_are_timed_in_the_limited_process(runtime: str, tmp_path: Path) -> None:
    pytest.importorskip(runtime)
    path = tmp_path / "model.onnx"
    onnx.save(proto_of("agraph (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }"), path)
    found = check_file.check_apart(path, path, 0, 0, runtime=runtime, policy=Policy(limit_ms=50))
    assert found.timing is not None
    assert found.timing.num_rounds >= 2
