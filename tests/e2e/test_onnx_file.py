"""`optimise_onnx`: a file in, a file with standard operators out, which computes the same elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from tests.e2e.models import Branches, ConvNorm, build
from torchrlopt import optimise_onnx
from torchrlopt.errors import ModelFormatError, OptionsError, VerificationError

onnxruntime = pytest.importorskip("onnxruntime")


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


def exported(model: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path) -> Path:
    """The model in the public exporter's form."""
    torch.onnx.export(model, inputs, str(path), dynamo=True, external_data=False, verbose=False)
    return path


def run(path: Path, inputs: tuple[torch.Tensor, ...]) -> list[np.ndarray[Any, Any]]:
    """The file in ONNX Runtime."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return list(session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True))))


CASES: dict[str, tuple[type[nn.Module], tuple[torch.Tensor, ...]]] = {
    "branches": (Branches, (torch.randn(5, 16),)),
    "conv": (ConvNorm, (torch.randn(2, 3, 9, 9),)),
    "activations": (Activations, (torch.randn(5, 16), torch.randn(2, 3, 9, 9))),
}


@pytest.mark.parametrize("name", CASES)
def test_file_is_rewritten_and_runs_elsewhere(name: str, tmp_path: Path) -> None:
    kind, inputs = CASES[name]
    source = exported(build(kind), inputs, tmp_path / "in.onnx")
    report = optimise_onnx(source, tmp_path / "out.onnx", on_error="raise")
    assert report.kept == "rewritten"
    assert report.steps
    result = onnx.load(tmp_path / "out.onnx")
    onnx.checker.check_model(result, full_check=True)
    assert {node.domain for node in result.graph.node} <= {"", "ai.onnx"}
    for ours, theirs in zip(run(tmp_path / "out.onnx", inputs), run(source, inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_names_of_inputs_and_outputs_stay(tmp_path: Path) -> None:
    source = exported(build(Branches), (torch.randn(5, 16),), tmp_path / "in.onnx")
    optimise_onnx(source, tmp_path / "out.onnx", on_error="raise")
    before, after = (onnx.load(tmp_path / name).graph for name in ("in.onnx", "out.onnx"))
    for kind in ("input", "output"):
        assert [v.name for v in getattr(before, kind)] == [v.name for v in getattr(after, kind)]


def test_malformed_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_bytes(b"\x08\x07 this is no model")
    with pytest.raises(ModelFormatError):
        optimise_onnx(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_failing_stage_writes_the_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchrlopt.compile import rewrite_file

    def fail(*_: Any) -> Any:
        raise VerificationError("wrong")

    inputs = (torch.randn(5, 16),)
    source = exported(build(Branches), inputs, tmp_path / "in.onnx")
    monkeypatch.setattr(rewrite_file, "_verify_model", fail)
    report = optimise_onnx(source, tmp_path / "out.onnx")
    assert (report.kept, report.fallback_reason) == ("original", "wrong")
    np.testing.assert_array_equal(run(tmp_path / "out.onnx", inputs)[0], run(source, inputs)[0])
    with pytest.raises(VerificationError):
        optimise_onnx(source, tmp_path / "out.onnx", on_error="raise")


def test_what_cannot_be_done_with_a_file_is_refused_at_once(tmp_path: Path) -> None:
    source = exported(build(Branches), (torch.randn(5, 16),), tmp_path / "in.onnx")
    with pytest.raises(OptionsError, match="one executor"):
        optimise_onnx(source, tmp_path / "out.onnx", executor="auto")
    with pytest.raises(OptionsError, match="no such folder"):
        optimise_onnx(source, tmp_path / "nowhere" / "out.onnx")
