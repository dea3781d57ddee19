"""Facts about results with symbolic sizes, when calls are applied to operands of another layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn import functional

import torchrlopt
from torchrlopt.ops.emitter import Emitter

aten = torch.ops.aten


@pytest.mark.parametrize("pad", [[3, 0], [-2, 0], [-1, 1]])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_symbols_stay(pad: list[int], is_transposed: bool) -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    emitter = Emitter(mode, torch.device("cpu"))
    x = emitter.graph.placeholder("x")
    dynamic = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC, DimDynamic.STATIC])
    x.meta["val"] = mode.from_tensor(torch.randn(2, 9, 32), symbolic_context=dynamic)
    if is_transposed:
        x = emitter.op(aten.transpose.int, x, 1, 2)
    found = emitter.op(aten.constant_pad_nd.default, x, pad, 0.0).meta["val"]
    assert isinstance(found.shape[0], torch.SymInt)
    assert found.shape[2] == (9 if is_transposed else 32) + sum(pad)


class Cropped(nn.Module):
    """Two linears of one input, which are merged into one, so that their results have other strides."""

    def __init__(self, pad: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.pad = nn.Linear(32, 32), nn.Linear(32, 32), pad

    def forward(self, x: Tensor) -> Tensor:
        cropped = self.pad(self.first(x).transpose(1, 2))
        return cropped.flatten(1).sum(1, keepdim=True) + functional.gelu(self.second(x)).mean((1, 2))[:, None]


@pytest.mark.parametrize("executor", ["eager", "onnxruntime"])
def test_crop_of_any_batch(executor: str) -> None:
    model = Cropped(lambda y: functional.pad(y, (-6, 0))).eval()
    options = {"on_error": "raise", "measure": False, "min_gain": -10.0, "executor": executor}
    fast = torch.compile(model, backend="rlopt", options=options, dynamic=True)
    with torch.no_grad():
        for batch in (2, 3, 5):
            x = torch.randn(batch, 9, 32)
            torch.testing.assert_close(fast(x), model(x), atol=1e-4, rtol=1e-4)
    assert any(report.kept == "rewritten" for report in torchrlopt.reports())
