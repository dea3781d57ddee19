"""The model passed to TensorRT: opset, weights, ranges, numbers; all tested without TensorRT."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchrlopt
from tests.crosses import nightly_but
from torchrlopt.errors import LoweringError, OptionsError
from torchrlopt.executors import registry
from torchrlopt.executors.eager.executor import EagerExecutor
from torchrlopt.executors.tensorrt.files import EngineFiles
from torchrlopt.executors.tensorrt.model import Prepared, TensorRtOptions, prepare, refused_by, zeros_for
from torchrlopt.onnx import opsets
from torchrlopt.options import LoweringOptions

CPU = torch.device("cpu")


class Recorder(EagerExecutor):
    """Keeps what executors are given."""

    def lower(self, model: Any, captured: Any, options: LoweringOptions) -> Any:
        self.given = model, captured
        return super().lower(model.clone(), captured, options)


@pytest.fixture
def prepared_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Prepared, list[Any]]]:
    """Captures and plans a model, and prepares it; the arguments of the graph come with it."""

    def make(
        model: nn.Module, *inputs: torch.Tensor, dynamic: bool = False, **settings: Any
    ) -> tuple[Prepared, list[Any]]:
        recorder = Recorder()
        monkeypatch.setattr(registry, "get", lambda name: recorder)
        torch._dynamo.reset()
        options: dict[str, Any] = {"cache": False, "on_error": "raise", "measure": False}
        calls: list[Any] = []
        lowered = recorder.lower

        def lower(*args: Any) -> Any:
            run = lowered(*args)
            return lambda *values: calls.append(values) or run(*values)

        monkeypatch.setattr(recorder, "lower", lower)
        with torch.no_grad():
            torch.compile(model.eval(), backend="rlopt", options=options, dynamic=dynamic)(*inputs)
        written, captured = recorder.given
        found = prepare(written, captured, LoweringOptions(**settings), CPU)
        return found, [list(captured.aten.graph.find_nodes(op="placeholder")), captured, calls[-1]]

    return make


def run(prepared: Prepared, context: list[Any]) -> list[np.ndarray]:
    """The prepared model in ONNX Runtime, with the arguments of the last call."""
    placeholders, captured, arguments = context
    given = {node.name: value for node, value in zip(placeholders, arguments, strict=True)}
    weights = prepared.prologue({name: (given | captured.constants)[name] for name in prepared.weights})
    held = {name: value.detach().contiguous().numpy() for name, value in weights.items()}
    settings = onnxruntime.SessionOptions()
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in held.items()}
    settings.add_external_initializers(list(values), list(values.values()))
    session = onnxruntime.InferenceSession(prepared.proto, settings, providers=["CPUExecutionProvider"])
    feeds = {}
    for name in prepared.feeds:
        value = given[name]
        feeds[name] = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(int(value))
    return session.run(list(prepared.fetches), feeds)


def self_contained(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with zeros for weights: the checker looks for files."""
    inside = onnx.ModelProto()
    inside.CopyFrom(proto)
    for tensor in inside.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            zeros = onnx.numpy_helper.from_array(np.zeros(tensor.dims, kind), tensor.name)
            tensor.CopyFrom(zeros)
    return inside


def check(prepared: Prepared, context: list[Any]) -> onnx.ModelProto:
    """Right numbers, valid at the opset, no weights inside."""
    _placeholders, captured, arguments = context
    proto = onnx.load_model_from_string(prepared.proto)
    assert {entry.domain: entry.version for entry in proto.opset_import}[""] <= opsets.TENSORRT
    assert {node.domain for node in proto.graph.node} <= {""}
    outside = [t for t in proto.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    assert {t.name for t in outside} == set(prepared.prologue.names)
    assert all(not t.raw_data and not t.float_data for t in outside)
    onnx.checker.check_model(self_contained(proto), full_check=True)
    with torch.no_grad():
        expected = [value for value in captured.aten.forward(*arguments) if value is not None]
    for got, wanted in zip(run(prepared, context), expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(got), wanted, rtol=1e-4, atol=1e-5)
    return proto


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 5)
        with torch.no_grad():
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.norm(self.a(x) + self.b(x)))
        return self.head(F.hardswish(F.max_pool2d(y, 2)).mean((2, 3)))


class Attention(nn.Module):
    """Grouped queries, rotary positions by hand, RMS norms; with a mask or causal."""

    def __init__(self, causal: bool = False, masked: bool = False) -> None:
        super().__init__()
        self.causal, self.masked = causal, masked
        self.norm = nn.RMSNorm(32)
        self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(32, 16)
        self.out = nn.Linear(32, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        y = self.norm(x)
        q, k, v = (
            layer(y).view(batch, length, heads, 8).transpose(1, 2)
            for layer, heads in ((self.q, 4), (self.k, 2), (self.v, 2))
        )
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        mask = None
        if self.masked:
            mask = torch.ones(length, length, dtype=torch.bool).tril(-1)  # the first row has no key
        z = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)
        return x + self.out(z.transpose(1, 2).reshape(batch, length, 32))


class GatedMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(16)
        self.gate, self.up, self.down = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cnn": (ConvNet, (2, 3, 12, 12)),
    "attention": (Attention, (2, 5, 32)),
    "causal": (lambda: Attention(causal=True), (2, 5, 32)),
    "masked": (lambda: Attention(masked=True), (2, 5, 32)),
    "gated_mlp": (GatedMlp, (3, 16)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", nightly_but(["attention"], CASES))
def test_prepared_models_are_standard_and_right(prepared_of: Any, case: str, dynamic: bool) -> None:
    torch.manual_seed(0)
    make, shape = CASES[case]
    prepared, context = prepared_of(make(), torch.randn(shape), dynamic=dynamic)
    proto = check(prepared, context)
    newer = {"Attention", "RMSNormalization", "RotaryEmbedding", "Swish"}
    assert not newer & {node.op_type for node in proto.graph.node}
    assert bool(prepared.ranges) == dynamic


def test_bfloat16_norms_are_computed_in_float32(prepared_of: Any) -> None:
    prepared, _context = prepared_of(GatedMlp().bfloat16(), torch.randn(3, 16).bfloat16())
    proto = onnx.load_model_from_string(prepared.proto)
    onnx.checker.check_model(self_contained(proto), full_check=True)
    casts = [node.attribute[0].i for node in proto.graph.node if node.op_type == "Cast"]
    assert casts == [onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16]


def test_expressions_over_weights_are_computed_once_outside(prepared_of: Any) -> None:
    prepared, context = prepared_of(ConvNet(), torch.randn(2, 3, 12, 12))
    proto = check(prepared, context)
    ops = [node.op_type for node in proto.graph.node]
    assert "BatchNormalization" not in ops
    outside = {t.name for t in proto.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL}
    conv = next(node for node in proto.graph.node if node.op_type == "Conv")
    assert set(conv.input[1:]) <= outside, "the folded kernel comes ready from outside"


def test_tf32_follows_torch(prepared_of: Any) -> None:
    assert prepared_of(ConvNet(), torch.randn(2, 3, 12, 12))[0].tf32, "torch's default for convolutions"
    assert not prepared_of(GatedMlp(), torch.randn(3, 16))[0].tf32, "torch's default for products"
    assert not prepared_of(ConvNet(), torch.randn(2, 3, 12, 12), numerics="strict")[0].tf32


def test_live_weights_stay_inputs(prepared_of: Any) -> None:
    prepared, context = prepared_of(GatedMlp(), torch.randn(3, 16), weights="live")
    assert prepared.weights == ()
    assert len(prepared.feeds) > 1
    check(prepared, context)


def test_ranges_follow_the_example_and_the_declared_bounds(prepared_of: Any) -> None:
    prepared, _context = prepared_of(GatedMlp(), torch.randn(5, 16), dynamic=True)
    (found,) = [each for each in prepared.ranges.values() if not each.is_value]
    assert (found.best[0], found.most[0], found.best[1:]) == (5, 20, (16,))
    assert 1 <= found.least[0] <= 2
    assert found.holds(torch.empty(20, 16))
    assert not found.holds(torch.empty(21, 16))
    assert not found.holds(torch.empty(0, 16))


def test_refusals(prepared_of: Any) -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(x) + 1

    with pytest.raises(LoweringError, match="bessel_j0"):
        prepared_of(Odd(), torch.randn(4))
    with pytest.raises(LoweringError, match="float64"):
        prepared_of(nn.Linear(4, 4).double(), torch.randn(2, 4).double())
    with pytest.raises(OptionsError, match=r"did you mean 'max_factor'"):
        TensorRtOptions.of(LoweringOptions(executor_options={"max_facto": 2}))
    with pytest.raises(OptionsError, match="optimization_level"):
        TensorRtOptions.of(LoweringOptions(executor_options={"optimization_level": 9}))
    assert TensorRtOptions.of(LoweringOptions()).refit
    assert not TensorRtOptions.of(LoweringOptions(weights="frozen")).refit


def test_the_executor_refuses_the_cpu() -> None:
    torch._dynamo.reset()
    with pytest.raises(torchrlopt.RlOptError, match="CUDA"):
        torchrlopt.optimise(
            nn.Linear(4, 4).eval(), torch.randn(2, 4), executor="tensorrt", on_error="raise", cache=False
        )


def test_files_survive_damage_and_stay_small(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = EngineFiles(tmp_path / "own", max_bytes=300)
    assert files.read("a") is None
    assert files.timings("10") == b""
    files.write("a", b"x" * 100)
    files.keep_timings("10", b"times")
    assert (files.read("a"), files.timings("10")) == (b"x" * 100, b"times")
    path = tmp_path / "own" / "a.plan"
    path.rename(tmp_path / "own" / "b.plan")
    assert files.read("b") is None, "a plan is tied to its key"
    assert "damaged" in caplog.text
    for name in "cdef":
        files.write(name, b"y" * 100)
    assert len(list((tmp_path / "own").glob("*.plan"))) == 2
    assert files.read("f") is not None
    (tmp_path / "own").chmod(0o777)
    assert files.read("f") is None, "others could have put a program there"


@pytest.mark.parametrize("blamed", ["Softmax", "Relu"])
def test_what_a_parser_refuses_is_told_of_the_nodes_of_the_plan(
    monkeypatch: pytest.MonkeyPatch, blamed: str
) -> None:
    """It is given other nodes: an attention, or an activation fused into a product, is several of them."""
    recorder = Recorder()
    monkeypatch.setattr(registry, "get", lambda name: recorder)
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(Attention(), nn.Linear(32, 32), nn.ReLU()).eval()
    options: dict[str, Any] = {"cache": False, "on_error": "raise", "measure": False}
    with torch.no_grad():
        torch.compile(model, backend="rlopt", options=options)(torch.randn(2, 5, 32))
    written, captured = recorder.given
    before = [node.name for node in written.graph]

    def parse(prepared: Prepared) -> dict[str, str]:
        proto = onnx.load_from_string(prepared.proto)
        zeros = zeros_for(prepared)
        assert zeros.keys() == set(prepared.prologue.names)
        sizes = {each.name: 4 * int(np.prod(each.dims)) for each in proto.graph.initializer}
        assert {name: each.numel() for name, each in zeros.items()} == {name: sizes[name] for name in zeros}
        assert len({each.data_ptr() for each in zeros.values()}) == 1
        names = [node.name for node in proto.graph.node if node.op_type == blamed]
        assert names
        return {**dict.fromkeys(names, "no\n such"), "of nobody": "another", "": "of the whole model"}

    found = refused_by(parse, written, captured, LoweringOptions(), CPU)
    fused = {"Softmax": {"Attention", "Softmax"}, "Relu": {"FusedMatMul", "Relu"}}[blamed]
    (node,) = found
    assert node in list(written.graph)
    assert node.op_type in fused
    assert found[node] == "TensorRT's parser refuses it: no such"
    assert [each.name for each in written.graph] == before
