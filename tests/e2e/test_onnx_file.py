"""`optimise_onnx`: a file in, a file with standard operators out, which computes the same elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from baselines.zoo.randomise import randomise
from tests.e2e.models import Branches, ConvNorm, build
from tests.onnx.onnx_text import proto_of
from torchrlopt import optimise_onnx
from torchrlopt.compile import check_file, fold_file, rewrite_file
from torchrlopt.errors import (
    LoweringError,
    ModelFormatError,
    OptionsError,
    UnsupportedError,
    VerificationError,
)
from torchrlopt.report import Report, Timing

onnxruntime = pytest.importorskip("onnxruntime")
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static  # noqa: E402 - if it is there


class Activations(nn.Module):
    """Linears and convolutions with every activation that can be fused."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(16, 16) for _ in range(9))
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        f = nn.functional
        kinds = [
            torch.relu,
            f.gelu,
            lambda x: f.gelu(x, approximate="tanh"),
            f.silu,
            torch.sigmoid,
            torch.tanh,
        ]
        kinds += [f.hardswish, f.hardsigmoid, f.leaky_relu]
        for linear, activate in zip(self.linears, kinds, strict=True):
            x = activate(linear(x)) + x
        return x, f.relu6(self.conv(image))


pytestmark = pytest.mark.usefixtures("checked_here")

X = (torch.randn(5, 16),)


def exported(model: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path) -> Path:
    """The model in the public exporter's form."""
    torch.onnx.export(model, inputs, str(path), dynamo=True, external_data=False, verbose=False)
    return path


def rewritten(given: Path | onnx.ModelProto, folder: Path, **options: Any) -> Report:
    """Rewrite a model to `out.onnx`, which must work; a model in memory is saved as `in.onnx`."""
    if isinstance(given, onnx.ModelProto):
        onnx.save(given, folder / "in.onnx")
        given = folder / "in.onnx"
    report = optimise_onnx(given, folder / "out.onnx", **{"on_error": "raise", "measure": False} | options)
    assert report.kept == "rewritten"
    return report


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that no test changes."""
    return exported(build(Branches), X, tmp_path_factory.mktemp("branches") / "in.onnx")


CONVOLUTIONS = """
g (float[1,3,9,9] x, float[8,3,3,3] w, float[8] b, float[4,8,1,1] v, float[4] c) => (float[1,4,7,7] y) {
    k = Conv(x, w, b)  a = Relu(k)  l = Conv(a, v, c)  y = Relu(l)
}"""


def quantised(path: Path, opset: int, **options: Any) -> Path:
    """A file that ONNX Runtime has quantised, and its input."""
    proto, draw = proto_of(CONVOLUTIONS, opset), np.random.default_rng(0)
    for value in list(proto.graph.input)[1:]:
        proto.graph.input.remove(value)
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        weight = draw.normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, value.name))
    given = iter([{"x": draw.normal(size=(1, 3, 9, 9)).astype(np.float32)} for _ in range(3)])
    reader = type("Reader", (CalibrationDataReader,), {"get_next": lambda self: next(given, None)})()
    quantize_static(proto, path, reader, weight_type=QuantType.QInt8, **options)
    return path


@pytest.mark.parametrize(("opset", "is_per_channel"), [(11, False), (13, True), (21, True)])
def test_integers_of_a_quantised_file_are_kept(opset: int, is_per_channel: bool, tmp_path: Path) -> None:
    source = quantised(tmp_path / "in.onnx", opset, per_channel=is_per_channel)
    rewritten(source, tmp_path)
    found = [onnx.load(tmp_path / name) for name in ("in.onnx", "out.onnx")]
    before, after = (
        {tuple(each.dims) for each in model.graph.initializer if each.data_type == onnx.TensorProto.INT8}
        for model in found
    )
    assert before == after
    kernels = [kernels_of(tmp_path, name) for name in ("in.onnx", "out.onnx")]
    assert kernels[0] == kernels[1]
    assert kernels[1].count("QLinearConv") == 2
    inputs = (torch.randn(1, 3, 9, 9),)
    for old, new in zip(run(source, inputs), run(tmp_path / "out.onnx", inputs), strict=True):
        np.testing.assert_array_equal(old, new)


def kernels_of(folder: Path, name: str) -> list[str]:
    """What ONNX Runtime makes of a file."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / f"optimised_{name}")
    options.log_severity_level = 3  # it warns that the file is for this processor
    onnxruntime.InferenceSession(str(folder / name), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(folder / f"optimised_{name}").graph.node]


def run(path: Path, inputs: tuple[torch.Tensor, ...]) -> list[np.ndarray[Any, Any]]:
    """The file in ONNX Runtime."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return list(session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True))))


CASES: dict[str, tuple[type[nn.Module], tuple[torch.Tensor, ...]]] = {
    "branches": (Branches, X),
    "conv": (ConvNorm, (torch.randn(2, 3, 9, 9),)),
    "activations": (Activations, (torch.randn(5, 16), torch.randn(2, 3, 9, 9))),
}


@pytest.mark.parametrize("name", CASES)
def test_file_is_rewritten_and_runs_elsewhere(name: str, tmp_path: Path) -> None:
    kind, inputs = CASES[name]
    source = exported(build(kind), inputs, tmp_path / "in.onnx")
    assert rewritten(source, tmp_path).steps
    result = onnx.load(tmp_path / "out.onnx")
    onnx.checker.check_model(result, full_check=True)
    assert {node.domain for node in result.graph.node} <= {"", "ai.onnx"}
    before = onnx.load(source).graph
    for kind in ("input", "output"):
        assert [v.name for v in getattr(before, kind)] == [v.name for v in getattr(result.graph, kind)]
    for ours, theirs in zip(run(tmp_path / "out.onnx", inputs), run(source, inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_expressions_over_weights_are_folded(tmp_path: Path) -> None:
    """A file's weights never change; the plan left 22 nodes of arithmetic over them in this one."""
    model = nn.Sequential(
        nn.BatchNorm1d(16), nn.Linear(16, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 1)
    )
    x = (torch.randn(8, 16),)
    randomise(model, x)
    source = exported(model.eval(), x, tmp_path / "in.onnx")
    assert rewritten(source, tmp_path).notes == ()
    assert operators(tmp_path / "out.onnx") == ["Gemm", "Relu", "Gemm"]
    assert len(onnx.load(tmp_path / "out.onnx").graph.initializer) == 4
    wide = model.double()(x[0].double())
    np.testing.assert_allclose(run(tmp_path / "out.onnx", x)[0], wide.detach(), rtol=1e-5, atol=1e-6)


def timed(monkeypatch: pytest.MonkeyPatch, *after_ms: float) -> list[float]:
    """Let originals take 1 ms, and the files that are timed next as long as given; returns what is left."""
    left = list(after_ms)

    def measure(before: Any, after: Any, *_: Any) -> Timing:
        before()
        after()
        ms = left.pop(0)
        return Timing(1.0, ms, 1 - ms, 0.0, 9)

    monkeypatch.setattr(check_file, "measure", measure)
    return left


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_what_is_neither_faster_nor_smaller_is_not_written(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both files are timed in the runtime that will run them."""
    pytest.importorskip(runtime)
    x = (torch.randn(64, 256),)
    source = exported(
        nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)), x, tmp_path / "in.onnx"
    )
    times = timed(monkeypatch, 3.0, 4.0)
    report = optimise_onnx(source, tmp_path / "out.onnx", on_error="raise", executor=runtime)
    assert times == [], "with the plan and without"
    assert (report.kept, report.measured_after_ms) == ("original", 3.0)
    assert "the rewritten file is not faster" in str(report.fallback_reason)
    assert (tmp_path / "out.onnx").read_bytes() == source.read_bytes()


def test_a_plan_that_does_not_pay_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What exporters write for sizes is folded either way."""
    text = """agraph (float[4, 6] x) => (float[2, 12] y)
    <int64[1] two = {2}, int64[1] index = {0}, int64 zero = {0}> {
      shape = Shape(x)
      first = Gather(shape, zero)
      wide = Unsqueeze(first, index)
      half = Div(wide, two)
      rest = Constant <value = int64[1] {-1}> ()
      sizes = Concat <axis = 0> (half, rest)
      a = Relu(x)
      b = Relu(a)
      y = Reshape(b, sizes)
    }"""
    timed(monkeypatch, 5.0, 0.2)
    report = rewritten(proto_of(text, 20), tmp_path, measure=True)
    assert (report.steps, report.searcher) == ((), "none")
    assert any("the plan is left out: the rewritten file is not faster" in note for note in report.notes)
    assert operators(tmp_path / "out.onnx") == ["Relu", "Relu", "Reshape"]


def test_what_would_grow_or_may_change_is_not_folded(tmp_path: Path) -> None:
    text = """agraph (float[64, 512] x, float[512] given) => (float[64, 512] y, float[512] constant)
    <float[512] w, float[512] given, int64[2] size> {
      twice = Add(w, w)
      large = Expand(w, size)
      scaled = Mul(given, given)
      constant = Neg(w)
      a = Mul(x, large)
      b = Mul(a, twice)
      y = Add(b, scaled)
    }"""
    proto = proto_of(text, 20)
    for name, array in (
        ("w", np.random.randn(512).astype("f")), ("given", np.ones(512, "f")), ("size", np.array([64, 512])),
    ):  # fmt: skip
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    rewritten(proto, tmp_path, searcher="none")
    found = onnx.load(tmp_path / "out.onnx").graph
    assert sorted(node.op_type for node in found.node) == ["Add", "Expand", "Mul", "Mul", "Mul", "Neg"]
    assert {each.name for each in found.initializer} >= {"given", "size", "w", "twice"}


def test_a_weight_that_stays_is_not_written_twice(tmp_path: Path) -> None:
    proto = proto_of(
        """agraph (float[4, 64] x, int64 n, bool go) => (float[4, 64] y) <float[64, 64] w> {
          scale = Constant <value = float[1] {2.0}> ()
          twice = Mul(w, scale)
          a = MatMul(x, twice)
          y = Loop(n, go, a) <body = b (int64 i, bool c, float[4, 64] p) => (bool d, float[4, 64] q) {
            d = Identity(c) q = MatMul(p, w) }>
        }""",
        20,
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.random.randn(64, 64).astype("f"), "w"))
    rewritten(proto, tmp_path, searcher="none")
    assert (tmp_path / "out.onnx").stat().st_size < (tmp_path / "in.onnx").stat().st_size + 5_000


def test_an_expression_that_cannot_be_evaluated_stays(
    branches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> bytes:
        raise UnsupportedError("the evaluation failed", got="it was not done after 300 s")

    monkeypatch.setattr(fold_file, "run_limited", fail)
    (note,) = rewritten(branches, tmp_path).notes
    assert "expressions over weights stay in the file" in note
    np.testing.assert_allclose(run(tmp_path / "out.onnx", X)[0], run(branches, X)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [13, 23])
def test_what_people_wrote_into_a_model_stays(opset: int, tmp_path: Path) -> None:
    """Class names, strides and scales of images are looked up there by those who run the model."""
    text = "agraph (float[2, 3] x) => (float[2, 3] y) {\n  a = Relu(x)\n  b = Relu(a)\n  y = Neg(b)\n}"
    proto = proto_of(text, opset)
    proto.doc_string, proto.domain, proto.model_version = "a model", "org.example", 7
    proto.graph.doc_string = "a graph"
    proto.graph.input[0].doc_string, proto.graph.output[0].doc_string = "pixels", "scores"
    onnx.helper.set_model_props(proto, {"names": "cat, dog"})
    rewritten(proto, tmp_path, searcher="greedy")
    found = onnx.load(tmp_path / "out.onnx")
    assert len(found.graph.node) == 2
    assert (found.doc_string, found.domain, found.model_version) == ("a model", "org.example", 7)
    assert {each.key: each.value for each in found.metadata_props} == {"names": "cat, dog"}
    assert found.graph.doc_string == "a graph"
    assert [found.graph.input[0].doc_string, found.graph.output[0].doc_string] == ["pixels", "scores"]


def test_malformed_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_bytes(b"\x08\x07 this is no model")
    with pytest.raises(ModelFormatError):
        optimise_onnx(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.hides_errors
def test_failing_stage_writes_the_original(
    branches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise VerificationError("wrong")

    monkeypatch.setattr(rewrite_file, "check_apart", fail)
    report = optimise_onnx(branches, tmp_path / "out.onnx")
    assert (report.kept, report.fallback_reason) == ("original", "wrong")
    np.testing.assert_array_equal(run(tmp_path / "out.onnx", X)[0], run(branches, X)[0])
    with pytest.raises(VerificationError):
        optimise_onnx(branches, tmp_path / "out.onnx", on_error="raise")


def test_what_cannot_be_done_with_a_file_is_refused_at_once(branches: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="one executor"):
        optimise_onnx(branches, tmp_path / "out.onnx", executor="auto")
    with pytest.raises(OptionsError, match="no such folder"):
        optimise_onnx(branches, tmp_path / "nowhere" / "out.onnx")


# ---- weights in another file, as the exporter writes them by default


@pytest.fixture(scope="module")
def exported_in_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in_two")
    torch.onnx.export(build(Branches), X, str(folder / "model.onnx"), dynamo=True, verbose=False)
    assert {each.name for each in folder.iterdir()} == {"model.onnx", "model.onnx.data"}
    return folder


@pytest.fixture
def in_two(exported_in_two: Path, tmp_path: Path) -> Path:
    """A copy of a model with its weights beside it."""
    return Path(shutil.copytree(exported_in_two, tmp_path / "a")) / "model.onnx"


@pytest.mark.hides_errors
@pytest.mark.parametrize("kept", ["rewritten", "original"])
def test_weights_in_another_file_go_along(
    kept: str, in_two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise LoweringError("no converter")

    (expected,) = run(in_two, X)
    target = tmp_path / "b" / "model.onnx"
    target.parent.mkdir()
    (target.parent / "model.onnx.data").write_bytes(b"of another model")
    if kept == "original":
        monkeypatch.setattr(rewrite_file, "make_plan", fail)
    report = optimise_onnx(in_two, target, verify=False, measure=False)
    assert report.kept == kept
    for path in in_two.parent.iterdir():
        path.unlink()
    np.testing.assert_allclose(run(target, X)[0], expected, rtol=1e-4, atol=1e-5)
    assert (target.parent / "model.onnx.data").read_bytes() == b"of another model"


def test_a_file_is_rewritten_in_its_own_place(in_two: Path) -> None:
    (expected,) = run(in_two, X)
    assert optimise_onnx(in_two, in_two, on_error="raise", measure=False).kept == "rewritten"
    np.testing.assert_allclose(run(in_two, X)[0], expected, rtol=1e-4, atol=1e-5)


def test_a_result_is_rewritten_again(branches: Path, tmp_path: Path) -> None:
    rewritten(branches, tmp_path)
    rewritten((tmp_path / "out.onnx").rename(tmp_path / "one.onnx"), tmp_path)


# ---- operators that are not run here

AROUND = """g (float[2,4] x) => (float[2,4] z) <float[2,4] b, float[2,4] d> {
  t = Transpose <perm = [1, 0]> (x)
  a = Transpose <perm = [1, 0]> (t)
  b = my.Foo(a)
  c = Relu(b)
  d = my.Bar(c)
  e = Transpose <perm = [1, 0]> (d)
  z = Transpose <perm = [1, 0]> (e)
}"""


def unusual(body: str) -> onnx.ModelProto:
    return proto_of(body, imports=', "my" : 1')


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_the_rest_of_a_model_is_optimised(tmp_path: Path) -> None:
    """And the report names all operators that were left alone."""
    report = rewritten(unusual(AROUND), tmp_path)
    assert "Transpose" not in operators(tmp_path / "out.onnx")
    assert report.opaque == ("my::Foo", "my::Bar")
    assert report.numerical_error is not None
    text = str(report)
    for line in ("my::Foo left alone", "my::Bar left alone", "not run in the check"):
        assert line in text


def test_an_unknown_operator_that_nothing_reads_is_removed(tmp_path: Path) -> None:
    dead = AROUND.replace("d>", "d, float[2,4] u>").replace("c = R", "u = my.Baz(b)  c = R")
    rewritten(unusual(dead), tmp_path)
    assert set(operators(tmp_path / "out.onnx")) == {"Foo", "Relu", "Bar"}


def test_the_check_finds_what_it_leaves_out_by_name(tmp_path: Path) -> None:
    """Also nodes without names whose results are renamed when constants are folded, and an If."""
    body = """g (float[2,4] x) => (float[4] noise, float[8] y, float[2,4] z) {
        drawn = RandomNormal<shape=[4]>()  noise = Identity(drawn)
        sizes = Shape(x)  number = ReduceProd(sizes)  flat = Reshape(x, number)  y = Relu(flat)
        yes = Constant<value = bool {1}>()
        z = If(yes) <then_branch = t () => (float[2,4] p) { p = Neg(x) },
                     else_branch = e () => (float[2,4] q) { q = Abs(x) }>
    }"""
    rewritten(unusual(body), tmp_path)
    assert set(operators(tmp_path / "out.onnx")) & {"Shape", "ReduceProd"} == set()


TOO_LARGE = AROUND.replace("[2,4]", "[1000000,1000000]")


def test_what_follows_an_operator_without_types_is_optimised(tmp_path: Path) -> None:
    """The file does not say what comes out of a sequence: plan and check have to infer it alike."""
    body = """agraph (float[4, 8] x) => (float[4, 8] y) {
        s = SplitToSequence <axis = 0> (x)
        c = ConcatFromSequence <axis = 0> (s)
        a = Relu(c)
        b = Relu(a)
        y = Neg(b)
    }"""
    rewritten(unusual(body), tmp_path, searcher="greedy")
    assert operators(tmp_path / "out.onnx").count("Relu") == 1


def test_what_cannot_be_checked_is_not_written(tmp_path: Path) -> None:
    source = tmp_path / "in.onnx"
    onnx.save(unusual(TOO_LARGE), source)
    with pytest.raises(UnsupportedError, match="too large for the check"):
        optimise_onnx(source, tmp_path / "out.onnx", on_error="raise")
    assert not (tmp_path / "out.onnx").exists()
    report = optimise_onnx(source, tmp_path / "out.onnx")
    assert report.kept == "original"
    assert "too large for the check" in str(report.fallback_reason)
    assert operators(tmp_path / "out.onnx") == operators(source)


def test_what_is_not_checked_is_said(tmp_path: Path) -> None:
    assert "not compared with the original" in str(rewritten(unusual(TOO_LARGE), tmp_path, verify=False))


@pytest.mark.nightly
def test_a_file_of_ten_thousand_operators(tmp_path: Path) -> None:
    blocks = "".join(
        f"a{n} = MatMul (x{n}, w) b{n} = Relu (a{n}) c{n} = Relu (b{n}) "
        f"d{n} = Transpose <perm = [1, 0]> (c{n}) x{n + 1} = Transpose <perm = [1, 0]> (d{n}) "
        for n in range(2000)
    )
    signature = "main (float[4, 4] x0, float[4, 4] w) => (float[4, 4] x2000)"
    proto = proto_of(f"{signature} {{ {blocks} }}")
    report = rewritten(proto, tmp_path, searcher="greedy", budget_ms=60_000.0, cache=False)
    assert (report.num_nodes_before, report.num_nodes_after) == (10_000, 4000)
    assert "Transpose" not in operators(tmp_path / "out.onnx")
    rotation = np.roll(np.eye(4, dtype=np.float32), 1, axis=0)
    x = np.random.default_rng(0).standard_normal((4, 4), dtype=np.float32)
    expected = np.maximum(x @ rotation, 0)
    for _ in range(1999):
        expected = expected @ rotation
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx")
    np.testing.assert_array_equal(session.run(None, {"x0": x, "w": rotation})[0], expected)
