"""Eager and inductor on CUDA: correct when weights or sizes change, with and without CUDA graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from tests.e2e.models import lowered
from torchrlopt.options import Options

pytestmark = pytest.mark.gpu

EXECUTORS = ["eager", "inductor"]
TOLERANCES = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}


class Net(nn.Module):
    """Convolutions that fold, a constant of its own, linears that merge, an output that is a view."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(3, 16, 1), nn.BatchNorm2d(16)
        self.left, self.right = nn.Linear(16, 6), nn.Linear(16, 5)
        self.register_buffer("shift", torch.linspace(-1, 1, 16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.norm(self.a(x) + self.b(x)))
        z = y.mean((2, 3)) + self.shift + torch.arange(16, device=x.device)
        return torch.cat([self.left(z), self.right(z)], 1), y.transpose(1, 3)


def build(dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    model = Net().eval()
    return model.to("cuda", dtype), torch.randn(2, 3, 24, 24, device="cuda", dtype=dtype)


def optimised(model: nn.Module, x: torch.Tensor, **options: Any) -> Any:
    torch._dynamo.reset()
    settings = {"on_error": "raise", "min_gain": -10.0, "cache": False, **options}
    return torchrlopt.optimise(model, x, **settings)


def check(ours: Any, model: nn.Module, x: torch.Tensor) -> None:
    tolerance = TOLERANCES[x.dtype]
    with torch.no_grad():
        for got, expected in zip(ours(x), model(x), strict=True):
            torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, check_stride=True)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_right_also_for_other_weights(executor: str, cuda_graphs: bool, dtype: torch.dtype) -> None:
    model, x = build(dtype)
    ours = optimised(model, x, executor=executor, cuda_graphs=cuda_graphs)
    assert (ours.report.kept, ours.report.executor) == ("rewritten", executor)
    check(ours, model, x)
    with torch.no_grad():
        model.a.weight.mul_(-0.5)
        model.right.bias.add_(1.0)
    check(ours, model, x)
    model.load_state_dict(build(dtype, 1)[0].state_dict())
    check(ours, model, x)
    check(ours, model, torch.randn_like(x))


@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_sizes_that_vary(executor: str, cuda_graphs: bool) -> None:
    model = nn.Sequential(nn.Linear(7, 16), nn.GELU(), nn.Linear(16, 4)).eval().cuda()
    options = {
        "executor": executor, "cuda_graphs": cuda_graphs, "on_error": "raise", "cache": False,
        "min_gain": -10.0,
    }  # fmt: skip
    torch._dynamo.reset()
    ours = torch.compile(model, backend="rlopt", options=options, dynamic=True)
    for rows in (5, 3, 17, 5, 1):
        x = torch.randn(rows, 7, device="cuda")
        with torch.no_grad():
            torch.testing.assert_close(ours(x), model(x), rtol=1e-3, atol=1e-4)


def test_recorded_once_for_sizes_and_weights() -> None:
    model, x = build()
    ours = optimised(model, x, executor="eager", cuda_graphs=True)
    check(ours, model, x)
    graphed = lowered()._run
    before = graphed.num_recorded
    assert before >= 1
    first = ours(x)[0].clone()
    kept = ours(x)[0]
    ours(torch.randn_like(x))
    torch.testing.assert_close(kept, first, rtol=0, atol=0)  # results are the caller's own
    assert graphed.num_recorded == before


def test_an_output_that_is_the_input_is_not_recorded() -> None:
    class Passing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.left(x), self.right(x), x[:, 1:]

    model, x = Passing().eval().cuda(), torch.randn(4, 8, device="cuda")
    ours = optimised(model, x, executor="eager", cuda_graphs=True)
    check(ours, model, x)


def test_live_weights_are_not_recorded() -> None:
    model, x = build()
    ours = optimised(model, x, executor="eager", cuda_graphs=True, weights="live")
    check(ours, model, x)
    assert not hasattr(lowered()._run, "num_recorded")


def test_auto_on_cuda() -> None:
    model, x = build()
    ours = optimised(model, x, executor="auto")
    check(ours, model, x)
    assert {"eager", "inductor"} <= {choice.executor for choice in ours.report.choices}


def test_default_on_cuda() -> None:
    from torchrlopt.executors.registry import defaults

    model, x = build()
    ours = optimised(model, x)
    check(ours, model, x)
    assert ours.report.executor in defaults("cuda")
    assert Options().executor == "default"
